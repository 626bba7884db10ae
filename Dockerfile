# An image with capsweep and Ray, from the locked packages: docker build -t capsweep .
# With CUDA: docker build --build-arg TORCH=cu130 -t capsweep .
FROM python:3.11-slim
ARG TORCH=cpu
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends make wget && rm -r /var/lib/apt/lists/*
WORKDIR /capsweep
COPY . .
RUN UV_NO_CACHE=1 UV_TORCH_BACKEND=$TORCH make setup && useradd --create-home --uid 1000 capsweep
# A login shell, which some operators use, forgets a PATH that ENV sets.
RUN ln -s /capsweep/.venv/bin/ray /capsweep/.venv/bin/capsweep /usr/local/bin/
USER 1000
