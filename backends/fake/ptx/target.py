"""LLVM: the host's target machine, the optimisation pipeline, object emission."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import llvmlite.binding as llvm


@dataclass(frozen=True)
class Host:
    """The CPU that objects are made for; part of the cache's key."""

    triple: str
    cpu: str
    features: str

    @property
    def wide(self) -> bool:
        return "+avx512f" in self.features.split(",")


@lru_cache(maxsize=1)
def host() -> Host:
    features = llvm.get_host_cpu_features()
    return Host(llvm.get_process_triple(), llvm.get_host_cpu_name(), features.flatten())


@lru_cache(maxsize=1)
def machine() -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    found = host()
    target = llvm.Target.from_triple(found.triple)
    return target.create_target_machine(
        cpu=found.cpu, features=found.features, opt=2, reloc="pic", codemodel="default"
    )


def attributes() -> str:
    """Function attributes for the widest registers; without them LLVM uses half of AVX-512."""
    found = host()
    width = ' "prefer-vector-width"="512" "min-legal-vector-width"="512"' if found.wide else ""
    return f'"target-cpu"="{found.cpu}" "target-features"="{found.features}"{width}'


def optimise(text: str) -> llvm.ModuleRef:
    """Parses and optimises a module in text form."""
    machine()
    module = llvm.parse_assembly(text)
    passes(module)
    return module


def passes(module: llvm.ModuleRef) -> None:
    """LLVM's O1: the code of O2 and O3 was not measurably faster, and took a quarter more time to make."""
    module.triple = host().triple
    module.data_layout = str(machine().target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = True
    builder = llvm.create_pass_builder(machine(), options)
    builder.getModulePassManager().run(module, builder)


def object_code(module: llvm.ModuleRef) -> bytes:
    code: bytes = machine().emit_object(module)
    return code


def assembly(module: llvm.ModuleRef) -> str:
    text: str = machine().emit_assembly(module)
    return text
