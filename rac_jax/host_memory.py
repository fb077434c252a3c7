"""The host's memory: what a step has freed is kept for the next one, and given back now and then."""

import ctypes
import importlib.util
import mmap
import os
import platform
import resource

# Of glibc's malloc.h.
TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8
RESERVE = 2**17  # bytes more than it needs that it lets a heap grow by

_keeping = False  # glibc's setting is the process's, and cannot be asked for


def share_heap() -> bool:
    """Where jax computes on CPUs, one heap for all threads; to be called before they start. Was it done?"""
    return _tunable() and _tell(ARENA_MAX, 1)


def keep_freed() -> bool:
    """There, hand no freed memory back to the system, for the next step asks for as much again. Was it done?

    glibc gives large arrays back at once, and the system clears their pages before they are used again, which takes a
    tenth of a step's CPU time and more. With this a process stays as large as it ever was, until it gives back.
    """
    global _keeping
    _keeping = _tunable() and _tell(TRIM_THRESHOLD, -1) and _tell(MMAP_MAX, 0)
    if _keeping:
        _ask_for_huge_pages(os.sysconf("SC_PHYS_PAGES") // 2 * mmap.PAGESIZE)
    return _keeping


def give_back() -> None:
    """Hand back what is free now, if it was kept: what the compiler used, and the highest point of past steps.

    Free memory lies between what is in use, in pieces that the next arrays do not quite fit, so that the heap would
    for long go on growing by chance. It takes milliseconds, and then what the next step needs is cleared anew: this is
    not for every step.
    """
    if not _keeping:
        return
    libc = ctypes.CDLL(None)
    libc.sbrk.restype, libc.sbrk.argtypes = ctypes.c_void_p, (ctypes.c_ssize_t,)
    libc.malloc_trim.argtypes = (ctypes.c_size_t,)
    end = libc.sbrk(0)
    libc.malloc_trim(0)
    if (gone := end - libc.sbrk(0)) > RESERVE:  # the end of the heap
        _ask_for_huge_pages(gone - RESERVE)


def _ask_for_huge_pages(size: int) -> None:
    """Let the heap grow by so many bytes in pages of 2 MB, which spare the processor looking small ones up.

    They are promised at once, and taken when they are used, unless promises are limited.
    """
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return
    libc, page = ctypes.CDLL(None), mmap.PAGESIZE
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.madvise.argtypes, libc.free.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), (ctypes.c_void_p,)
    if heap := libc.malloc(size):  # nothing, where the system does not promise so much
        libc.madvise(-(-heap // page) * page, size - page, mmap.MADV_HUGEPAGE)
        libc.free(heap)


def _tell(parameter: int, value: int) -> bool:
    return bool(ctypes.CDLL(None).mallopt(parameter, value))


def _tunable() -> bool:
    """Is this glibc, without an accelerator, and has the user told it nothing (MALLOC_…, GLIBC_TUNABLES)?"""
    told = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    return not told and platform.libc_ver()[0] == "glibc" and _only_cpus()


def _only_cpus() -> bool:
    """Will jax find nothing but CPUs? Told without asking it, which would start its devices."""
    if platforms := os.environ.get("JAX_PLATFORMS"):
        return platforms == "cpu"
    return not any(importlib.util.find_spec(name) for name in ("jax_plugins", "libtpu"))
