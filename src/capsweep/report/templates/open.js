function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let node = target; node; node = node.parentElement) {
    if (node.tagName === "DETAILS") node.open = true;
  }
  if (target) target.scrollIntoView();
}
function reloadUnlessRead() {
  if (!document.querySelector("details[open]")) location.reload();
}
addEventListener("hashchange", openTarget);
addEventListener("DOMContentLoaded", () => {
  const [navigation] = performance.getEntriesByType("navigation");
  if (navigation?.type !== "reload") openTarget();  // a reload keeps the place of the reader
  const running = document.querySelector(".running");
  if (running) setInterval(reloadUnlessRead, 1000 * running.dataset.seconds);
});
