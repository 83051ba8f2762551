"""Settings: one TOML file per role, the same section and key names for every role where they apply.

Unknown sections and keys are refused by name. Relative paths are taken from the file's own folder. What each key means
stands in its description here; `docs/configuration.md` is generated from it (`sdcp config`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator

from sdcp.errors import ConfigurationError
from sdcp.http.identity import CACHE, DRAFTER, FRONT_END, ROUTER, VERIFIER
from sdcp.stores.opening import SCHEMES


def _anchored(path: Path, info: ValidationInfo) -> Path:
    """Take a relative path from the folder of the settings file."""
    folder = (info.context or {}).get("folder", Path())
    return path.expanduser() if path.expanduser().is_absolute() else folder / path


def _host_and_port(value: str) -> str:
    host, separator, port = value.rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError("must be HOST:PORT, for example 127.0.0.1:7401")
    return value


def _https(value: str) -> str:
    if not value.startswith("https://"):
        raise ValueError("must be an https URI, for example https://127.0.0.1:7401")
    return value.rstrip("/")


def _cache_uri(value: str) -> str:
    if value.partition(":")[0] not in SCHEMES:
        raise ValueError(f"must be the URI of a cache, which begins with one of {', '.join(SCHEMES)}")
    return value.rstrip("/")


def _is_wildcard(listen: str) -> bool:
    try:
        return ip_address(listen.rpartition(":")[0].strip("[]")).is_unspecified
    except ValueError:
        return False


FilePath = Annotated[Path, AfterValidator(_anchored)]
Listen = Annotated[str, AfterValidator(_host_and_port)]
BaseUri = Annotated[str, AfterValidator(_https)]
CacheUri = Annotated[str, AfterValidator(_cache_uri)]


class Section(BaseModel):
    """One table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Server(Section):
    """`[server]`: where the role listens, and the base URI by which peers know it."""

    listen: Listen = Field("127.0.0.1:0", description="Address and port; port 0 takes a free one.")
    base_uri: BaseUri | None = Field(
        None,
        description="Base URI that peers use; must be a SAN URI of the certificate. Absent: `https://` and `listen`, "
        "which must then be one address, not 0.0.0.0 or [::].",
    )

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.base_uri is None and _is_wildcard(self.listen):
            raise ValueError(
                f"listen = {self.listen} is every address of this machine: say base_uri, by which peers know us"
            )
        return self

    @property
    def known_base_uri(self) -> str | None:
        """The base URI as far as the settings tell it: None while the port is yet to be taken."""
        fixed = int(self.listen.rpartition(":")[2]) != 0
        return self.base_uri or (f"https://{self.listen}" if fixed else None)


class Tls(Section):
    """`[tls]`: our certificate, its key, and the authority that peers' certificates must come from."""

    certificate: FilePath = Field(description="PEM file: certificate, then intermediates.")
    key: FilePath = Field(description="PEM file: private key, not encrypted.")
    ca: FilePath = Field(description="PEM file: authorities whose certificates are accepted.")
    roles: dict[str, str | tuple[str, ...]] | None = Field(
        None,
        description='Which SANs carry which role (D9), e.g. {"spiffe://cluster/*/verifier" = "verifier"}; '
        "absent: urn:sdcp:role:ROLE carries ROLE. Our own certificate needs its role by the same table.",
    )
    match_host: bool = Field(
        False, description="Accept a SAN DNS or IP equal to a base URI's host as its owner (D9); ours too."
    )


class Model(Section):
    """`[model]`: engine and weights."""

    engine: str = Field(description="bigram or transformers.")
    path: FilePath | None = Field(None, description="Weights: a safetensors file (bigram) or a model folder.")
    tokenizer: FilePath | None = Field(None, description="tokenizer.json, where it is not inside the model folder.")
    device: str = Field("cpu", description="cpu, cuda or cuda:N (transformers only, as precision and threads).")
    precision: str = Field("auto", description="auto, float32, bfloat16, float16, or packed-float16 (CPU).")
    threads: int | None = Field(None, ge=1, description="Threads of the engine; absent: torch decides.")
    capacity: int | None = Field(
        None,
        ge=1,
        description="Sessions that may hold KV at once (bigram: that are served). A verifier takes no more sessions "
        "than this, nor than `[limits] sessions`. Absent: 32 (transformers), 1024 (bigram).",
    )

    def options(self) -> dict[str, Any]:
        """What the file sets for the engine itself; engines refuse an option that they do not have."""
        return self.model_dump(exclude={"engine", "path", "tokenizer"}, exclude_unset=True)


class TargetModel(Model):
    """`[model]` of a verifier."""

    kv_cache_bytes: int | None = Field(
        None,
        ge=0,
        description="Octets of KV, in the device's memory, kept for sessions that begin as earlier ones did (D44); "
        "0: none. Besides what live sessions hold. Absent: 256 MiB. transformers only.",
    )


class DrafterModel(Model):
    """`[model]` of a drafter."""

    engine: str = Field(description="bigram, transformers, ngram or ngram+transformers.")
    vocabulary: int | None = Field(
        None, ge=1, description="V of the target: needed by ngram, else only where the drafter's own differs (D5)."
    )
    capacity: int | None = Field(
        None,
        ge=1,
        description="Sessions that may hold KV at once (transformers); the one used longest ago makes room and is "
        "computed again when it is back, so fewer than `[limits] sessions` is slower, not wrong. Absent: 256.",
    )


class GatewayModel(Section):
    """`[model]` of a gateway: what turns text into tokens and back."""

    engine: str | None = Field(
        None,
        description="bigram: text is token identifiers, unless `tokenizer` is set; else no effect.",
    )
    path: FilePath | None = Field(None, description="The model folder: tokenizer.json and the chat template.")
    tokenizer: FilePath | None = Field(None, description="tokenizer.json, where it is not inside the model folder.")


class CachePrefixes(Section):
    """`[cache]`: the caches whose objects and logs may be used (D11)."""

    prefixes: tuple[CacheUri, ...] = Field(
        min_length=1,
        description="URIs of caches: https, file, memory, s3, valkey (docs/mlc.md). New objects go to the first; what "
        "a peer names is read if it is under one of them, or `logs`.",
    )
    logs: CacheUri | None = Field(
        None,
        description="The cache of new commit logs and manifests; the same for routers and verifiers. Absent: the first "
        "of `prefixes`.",
    )
    host_memory: bool = Field(
        True, description="Share objects with caches of this host as sealed memory where they offer it (D40)."
    )


class Routers(Section):
    """`[routers]`: whom to report status and events to."""

    base_uris: tuple[BaseUri, ...] = Field((), description="Base URIs of routers; every one gets every status.")


class RoutersToAsk(Section):
    """`[routers]` of a gateway: whom to ask."""

    base_uris: tuple[BaseUri, ...] = Field(min_length=1, description="Base URIs of routers; the next when one is down.")


class Limits(Section):
    """`[limits]` that every role has."""

    body_bytes: int = Field(16 << 20, ge=1024, description="Largest request body, in octets.")
    connections: int = Field(1024, ge=1, description="Connections at once.")
    drain_s: float = Field(20.0, ge=0, description="Seconds that SIGTERM leaves for what is under way.")


class ReportingLimits(Limits):
    """`[limits]` of the roles that report their status."""

    status_ttl_ms: int = Field(3000, ge=100, description="ttl_ms of our status reports; sent three times as often.")


class VerifierLimits(ReportingLimits):
    """`[limits]` of a verifier."""

    sessions: int = Field(
        256,
        ge=1,
        description="Live sessions, at most `[model] capacity`; beyond it POST sessions is answered 503.",
    )
    wait_ms: int = Field(25_000, ge=0, description="Longest wait of GET output (D8).")
    retention_s: float = Field(600.0, ge=0, description="Seconds that an ended session stays readable (D8).")
    idle_s: float = Field(600.0, gt=0, description="Seconds after which a session that nobody asks for is given up.")
    busy_load: int = Field(90, ge=0, le=100, description="Load from which m_cap is not raised and is cut (6.5.1).")
    busy_cap: int = Field(4, ge=1, le=64, description="What m_cap is cut to from that load on (6.5.1).")
    fetch_ms: int = Field(5_000, ge=1, description="Deadline for objects named by peers (D11).")


class Kv(Section):
    """`[kv]` of a verifier: target KV in the cache, for takeovers and for prompts that begin alike."""

    group_key: FilePath | None = Field(
        None,
        description="File of at least 32 random octets (`head -c 32 /dev/urandom`), the same for all verifiers of a "
        "group; KV is published, and loaded, only under a tag of this key (D44). Absent: neither. transformers only.",
    )
    interval: int = Field(
        256, ge=0, description="Publish a session's KV after every so many committed tokens; 0: never."
    )
    prompt_min: int = Field(
        512, ge=0, description="Publish, and look for, KV of a prompt's first tokens from so many on; 0: never."
    )
    object_ms: int = Field(5_000, ge=1, description="Deadline for one KV object, to or from the cache.")
    object_bytes: int = Field(
        256 << 20,
        ge=1 << 16,
        description="Largest KV object that is published or loaded, in octets; no more than `[limits] body_bytes` of "
        "the cache.",
    )


class DrafterLimits(ReportingLimits):
    """`[limits]` of a drafter."""

    sessions: int = Field(256, ge=1, description="Assignments held at once; beyond it 503.")
    proposal_ms: int = Field(60_000, ge=1, description="How long one wait for a verdict lasts before it is repeated.")


class RouterLimits(Limits):
    """`[limits]` of a router."""

    sessions: int = Field(4096, ge=1, description="Requests held at once; beyond it 503.")
    retention_s: float = Field(600.0, ge=0, description="Seconds that an ended request stays readable.")


class ContractDefaults(Section):
    """`[contract]`: what the router puts into the contracts it makes (4.1)."""

    m_max: int = Field(8, ge=1, le=64, description="Upper bound on M.")
    m_init: int = Field(4, ge=1, le=64, description="Limit before the first verdict; at most m_max.")
    low_rounds: int = Field(4, ge=1, description="R, the escalation period.")
    low_ratio: int = Field(0, ge=0, le=100, description="A round is low below this percentage; 0: only when a = 0.")
    fallback: tuple[Literal["reduce", "switch", "self_decode", "fail"], ...] = Field(
        ("reduce", "reduce", "self_decode", "switch"), min_length=1, description="The escalation ladder, in order."
    )
    self_load: int | None = Field(60, ge=0, le=100, description="Highest verifier load for self-decoding.")
    self_max: int | None = Field(16, ge=0, description="Most tokens of one self-decoding period.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if "m_init" in self.model_fields_set and self.m_init > self.m_max:
            raise ValueError(f"m_init = {self.m_init} is above m_max = {self.m_max}")
        return self


class ManifestSettings(Section):
    """`[manifest]` of a router: what it keeps in the cache, to go on with its sessions after a restart."""

    keep: bool = Field(True, description="Keep a manifest of each session beside its commit log (D45).")
    name: str | None = Field(
        None, min_length=1, description="By this name a router knows its sessions again. Absent: its base URI."
    )
    take_over: tuple[str, ...] = Field(
        (), description="Names of other routers, which do not run any more, whose sessions are taken up at the start."
    )
    at_once: int = Field(32, ge=1, description="How many sessions are taken up at the same time.")
    horizon_s: float = Field(
        86_400.0, gt=0, description="A session of which nothing was written down for so many seconds is left alone."
    )


class Instance(Section):
    """`[[instances]]`: inventory for instances whose status does not say it (D7)."""

    instance: str = Field(description="The status message's `instance`.")
    base: BaseUri = Field(description="Its base URI.")
    model: str = Field(description="SHA-256 of its model, in hex.")
    tokenizer: str = Field(description="SHA-256 of its tokenizer, in hex.")


class Store(Section):
    """`[store]`: the levels of a cache (D41)."""

    directory: FilePath = Field(description="Folder of the durable level.")
    memory_bytes: int = Field(256 << 20, ge=0, description="Octets of objects kept in the process's memory.")
    host_bytes: int = Field(
        512 << 20, ge=0, description="Octets of objects kept in memory that processes of this host share (D40)."
    )
    disk_bytes: int = Field(8 << 30, ge=1 << 16, description="Octets of objects and logs on disk.")
    network: str | None = Field(
        None,
        description="URI of a cache under the disk, for this cache alone (D41), as in `[cache] prefixes`: "
        "for example s3://bucket/cache-1. Absent: none.",
    )
    network_bytes: int | None = Field(None, ge=1, description="Octets of objects kept there. Absent: no limit.")
    host_memory: bool = Field(
        True, description="Share objects with processes of this host and user as sealed memory (D40, Linux)."
    )
    sync_objects: bool = Field(
        False, description="Sync each object too (logs always are); else a power cut may lose the last ones, whole."
    )
    idle_s: float = Field(
        3600.0, ge=60, description="Seconds that an object stays which no lease holds and nobody puts or reads (D41)."
    )
    log_retention_s: float = Field(
        30 * 86_400.0, ge=3600, description="Seconds that a log stays, at least, after its last append."
    )


class Api(Section):
    """`[api]`: the OpenAI-compatible front of a gateway."""

    listen: Listen = Field("127.0.0.1:8000", description="Address and port of the API.")
    certificate: FilePath | None = Field(None, description="PEM file, to serve the API over TLS.")
    key: FilePath | None = Field(None, description="PEM file, its key.")
    model_name: str = Field("sdcp", description="The model's name in /v1/models.")
    max_tokens: int = Field(256, ge=1, description="max_tokens of a request that gives none.")


class RoleSettings(Section):
    """What every role has. `name` is the command's; `role` the one that the certificate must have (D9)."""

    name: ClassVar[str]
    role: ClassVar[str]
    server: Server = Server()
    tls: Tls
    limits: Limits = Limits()


class VerifierSettings(RoleSettings):
    """`sdcp verifier`."""

    name: ClassVar[str] = "verifier"
    role: ClassVar[str] = VERIFIER
    model: TargetModel
    cache: CachePrefixes
    routers: Routers = Routers()
    limits: VerifierLimits = VerifierLimits()
    kv: Kv = Kv()


class DrafterSettings(RoleSettings):
    """`sdcp drafter`."""

    name: ClassVar[str] = "drafter"
    role: ClassVar[str] = DRAFTER
    model: DrafterModel
    cache: CachePrefixes
    routers: Routers = Routers()
    limits: DrafterLimits = DrafterLimits()


class RouterSettings(RoleSettings):
    """`sdcp router`."""

    name: ClassVar[str] = "router"
    role: ClassVar[str] = ROUTER
    cache: CachePrefixes
    contract: ContractDefaults = ContractDefaults()
    instances: tuple[Instance, ...] = ()
    manifest: ManifestSettings = ManifestSettings()
    limits: RouterLimits = RouterLimits()


class CacheSettings(RoleSettings):
    """`sdcp cache`."""

    name: ClassVar[str] = "cache"
    role: ClassVar[str] = CACHE
    store: Store
    limits: Limits = Limits(body_bytes=256 << 20)  # rows of a large vocabulary: M x V x 4


class GatewaySettings(RoleSettings):
    """`sdcp gateway`."""

    name: ClassVar[str] = "gateway"
    role: ClassVar[str] = FRONT_END
    api: Api = Api()
    model: GatewayModel
    routers: RoutersToAsk


S = TypeVar("S", bound=RoleSettings)


def load(path: Path, settings: type[S]) -> S:
    """Read a settings file. Raises ConfigurationError naming file, section and key."""
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as fault:
        raise ConfigurationError(f"{path}: cannot be read: {fault.strerror}") from None
    except tomllib.TOMLDecodeError as fault:
        raise ConfigurationError(f"{path}: is not TOML: {fault}") from None
    try:
        return settings.model_validate(document, context={"folder": path.resolve().parent})
    except ValidationError as fault:
        raise ConfigurationError(f"{path}: {_complaint(fault.errors(), settings.name)}") from None


def _complaint(errors: Sequence[Any], role: str) -> str:
    """Say all that is missing, and the first of what else is wrong, in one line and in the words of the file."""
    missing = [_where(error) for error in errors if error["type"] == "missing"]
    others = [_sentence(error) for error in errors if error["type"] != "missing"]
    if missing:
        lacking = f"{', '.join(missing)}: missing; `sdcp config {role}` shows what it needs"
        return "; ".join([*others[:1], lacking])
    return others[0]


def _sentence(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return f"{_where(error)}: unknown key; see docs/configuration.md"
    return f"{_where(error)}: {error['msg'].removeprefix('Value error, ')}"


def _where(error: Any) -> str:
    *sections, key = (str(part) for part in error["loc"])
    return f"[{'.'.join(sections)}] {key}" if sections else f"[{key}]"
