function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let node = target; node; node = node.parentElement) {
    if (node.tagName === "DETAILS") node.open = true;
  }
  if (target) target.scrollIntoView();
}
addEventListener("hashchange", openTarget);
addEventListener("DOMContentLoaded", openTarget);
function markCut() {
  for (const frame of document.querySelectorAll(".frame")) {
    const box = frame.firstElementChild;
    frame.classList.toggle("cut", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  }
}
addEventListener("resize", markCut);
addEventListener("scroll", markCut, true);
addEventListener("DOMContentLoaded", markCut);
