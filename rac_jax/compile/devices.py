"""Accelerators that programs can be compiled for, with the figures of their makers' data sheets."""

import dataclasses

from rac_jax.runtime import monitor

GB = 10**9


@dataclasses.dataclass(frozen=True)
class Gpu:
    """What XLA's GPU compiler wants to know of a device."""

    capability: tuple[int, int]
    cores: int  # multiprocessors
    fpus: int  # a multiprocessor
    clock: float  # GHz
    l2: int  # bytes
    shared: int  # bytes of shared memory that a block may ask for
    threads: int = 2048  # a multiprocessor


@dataclasses.dataclass(frozen=True)
class Device:
    """One accelerator. Rates are per second and device."""

    kind: str  # as JAX names it; decides the peak in monitor.PEAKS
    memory: int  # bytes
    bandwidth: float  # bytes, of its memory
    link: float  # bytes, sent to the others of the same machine or pod, in one direction
    linked_by: str
    gpu: Gpu | None = None
    grid: int = 0  # axes of a TPU's topology
    float32: float = 1.0  # speed of float32 products at JAX's default precision, relative to bfloat16

    @property
    def peak(self) -> float:
        """FLOP/s of dense bfloat16 products."""
        return next(peak for name, peak in monitor.PEAKS.items() if name in self.kind)

    @property
    def platform(self) -> str:
        return "cuda" if self.gpu else "tpu" if self.grid else "cpu"


_AMPERE = Gpu((8, 0), cores=108, fpus=64, clock=1.41, l2=41_943_040, shared=166_912)
_HOPPER = Gpu((9, 0), cores=132, fpus=128, clock=1.98, l2=52_428_800, shared=232_448)
_ADA = Gpu((8, 9), cores=142, fpus=128, clock=2.52, l2=100_663_296, shared=101_376, threads=1536)

# TF32 products run at half of bfloat16's rate on GPUs; on TPUs float32 is rounded to bfloat16 by default.
DEVICES = {
    "a100": Device("NVIDIA A100-SXM4-40GB", 42_506_321_920, 1.555e12, 300e9, "NVLink 3", _AMPERE, float32=0.5),
    "a100-80": Device("NVIDIA A100-SXM4-80GB", 85_094_825_984, 2.039e12, 300e9, "NVLink 3", _AMPERE, float32=0.5),
    "h100": Device("NVIDIA H100 80GB HBM3", 85_029_158_912, 3.35e12, 450e9, "NVLink 4", _HOPPER, float32=0.5),
    "l40s": Device("NVIDIA L40S", 47_810_936_832, 0.864e12, 32e9, "PCIe 4", _ADA, float32=0.5),
    "v5e": Device("TPU v5 lite", 16 * 2**30, 0.819e12, 90e9, "ICI, two links", grid=2),
    "v5p": Device("TPU v5", 95 * 2**30, 2.765e12, 180e9, "ICI, two links", grid=3),
    "v6e": Device("TPU v6 lite", 32 * 2**30, 1.638e12, 180e9, "ICI, two links", grid=2),
}


def like(kind: str) -> Device | None:
    """The device of the table that JAX calls `kind`, or one of the same family; None if it has none."""
    family = next((name for name in monitor.PEAKS if name in kind), kind)
    found = [device for device in DEVICES.values() if family in device.kind]
    return next((device for device in found if device.kind == kind), found[0] if found else None)


def target_config(device: Device) -> str:
    """The description of a GPU in the text form of XLA's GpuTargetConfigProto."""
    gpu = device.gpu
    assert gpu is not None
    major, minor = gpu.capability
    fields = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 49152,
        "shared_memory_per_core": gpu.shared + 1024,
        "threads_per_core_limit": gpu.threads,
        "core_count": gpu.cores,
        "fpus_per_core": gpu.fpus,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "memory_bandwidth": int(device.bandwidth),
        "l2_cache_size": gpu.l2,
        "clock_rate_ghz": gpu.clock,
        "device_memory_size": device.memory,
        "shared_memory_per_block_optin": gpu.shared,
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
    }
    info = " ".join(f"{name}: {value}" for name, value in fields.items())
    capability = f"cuda_compute_capability {{ major: {major} minor: {minor} }}"
    return (
        f'gpu_device_info {{ {info} {capability} }} platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 8 }} '
        f'runtime_version {{ major: 12 minor: 9 patch: 0 }} device_description_str: "{device.kind}"'
    )
