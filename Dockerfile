# docker build -t taetpu . && docker run --rm -v "$PWD:/work" taetpu run my-idea.yaml
# The version for CPUs. For accelerators, add an extra to the last pip line: '/dist/taetpu-*.whl[cuda]'.
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM python:3.11-slim
COPY requirements.lock /dist/
COPY --from=build /dist /dist
RUN python -m pip install --no-cache-dir -c /dist/requirements.lock /dist/taetpu-*.whl && useradd --create-home taetpu
USER taetpu
WORKDIR /work
ENTRYPOINT ["taetpu"]
CMD ["--help"]
