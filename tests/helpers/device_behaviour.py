"""Tests that every CUDA device passes, real or simulated. Test modules import them and define the fixture `device`."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from runtime.base.errors import CaptureError, EngineError, OutOfMemoryError
from runtime.devices.device import Stream, Tensor

if TYPE_CHECKING:
    from runtime.devices.cuda import CudaDevice

DTYPES = ("float32", "int64", "bool", "uint8")


def filled(device: CudaDevice, values: np.ndarray[Any, Any]) -> Tensor:
    tensor = device.zeros(values.shape, values.dtype)
    device.upload(tensor, values, device.main)
    return tensor


def fetched(device: CudaDevice, tensor: Tensor) -> np.ndarray[Any, Any]:
    target = device.staging(tensor.shape, tensor.dtype)
    device.download(target, tensor, device.main)
    device.main.record().wait()
    return target


def clear_half(device: CudaDevice, tensor: Tensor, stream: Stream | None = None) -> None:
    """Launch work that zeroes half of the tensor."""
    # Imported here: the simulator replaces the module.
    from runtime.devices import cuda_calls

    cuda_calls.zero(tensor.address, tensor.size_bytes // 2, (stream or device.main).handle)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 700, 64)])
def test_a_download_equals_the_upload(device: CudaDevice, shape: tuple[int, ...], dtype: str) -> None:
    values = (np.random.default_rng(1).random(shape) * 250).astype(dtype)
    assert np.array_equal(fetched(device, filled(device, values)), values)


def test_values_of_any_layout_and_dtype_are_uploaded_as_they_are(device: CudaDevice) -> None:
    """A copy of them counts as an allocation."""
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    filled(device, values)  # makes the ring
    for source, copies in ((values.T.copy(), 0), (values.T, 1), (values.T.astype(np.float64), 1)):
        tensor = device.zeros((4, 3), np.float32)
        before = device.allocations
        device.upload(tensor, source, device.main)
        assert device.allocations - before == copies
        assert np.array_equal(fetched(device, tensor), values.T)


def test_memory_is_zero_and_aligned(device: CudaDevice) -> None:
    for shape in ((1,), (1000,), (3, 77)):
        tensor = device.zeros(shape, np.float32)
        assert tensor.address % 256 == 0
        assert not fetched(device, tensor).any()
        assert not device.staging(shape, np.float32).any()


def test_reused_memory_is_zero(device: CudaDevice) -> None:
    first = filled(device, np.ones(5000, np.float32))
    address = first.address
    del first
    second = device.zeros((5000,), np.float32)
    assert second.address == address
    assert not fetched(device, second).any()


def test_a_source_may_be_overwritten_after_upload(device: CudaDevice) -> None:
    values = np.arange(3_000_000, dtype=np.float32)
    expected = values.copy()
    tensor = device.zeros(values.shape, values.dtype)
    device.upload(tensor, values, device.main)
    values[:] = -1
    assert np.array_equal(fetched(device, tensor), expected)


def test_a_copy_on_the_device_needs_the_same_size(device: CudaDevice) -> None:
    source, target = filled(device, np.arange(6, dtype=np.float32)), device.zeros((12,), np.float32)
    device.copy(target.view(6, start=3), source, device.main)
    assert fetched(device, target).tolist() == [0, 0, 0, 0, 1, 2, 3, 4, 5, 0, 0, 0]
    with pytest.raises(ValueError, match="24 bytes into 48"):
        device.copy(target, source, device.main)


def test_uploads_larger_than_the_ring(device: CudaDevice) -> None:
    tensors = [filled(device, np.full(300_000, index, np.float32)) for index in range(12)]
    for index, tensor in enumerate(tensors):
        assert (fetched(device, tensor) == index).all()


def test_a_view_shares_its_tensors_memory(device: CudaDevice) -> None:
    tensor = device.zeros((4, 100), np.float32)
    device.upload(tensor.view(100, start=200), np.ones(100, np.float32), device.main)
    assert np.array_equal(fetched(device, tensor).sum(axis=1), [0, 0, 100, 0])


def test_an_upload_converts_dtype_and_layout(device: CudaDevice) -> None:
    tensor = device.zeros((3, 4), np.float32)
    device.upload(tensor, np.arange(12.0).reshape(4, 3).T, device.main)
    assert np.array_equal(fetched(device, tensor), np.arange(12).reshape(4, 3).T)
    with pytest.raises(TypeError, match="same_kind"):
        device.upload(device.zeros((3,), np.int64), np.ones(3), device.main)


def test_copies_between_different_shapes_are_refused(device: CudaDevice) -> None:
    tensor = device.zeros((3, 4), np.float32)
    with pytest.raises(ValueError, match=r"\(3, 4\)"):
        device.upload(tensor, np.zeros(12, np.float32), device.main)
    with pytest.raises(ValueError, match=r"\(3, 4\)"):
        device.download(np.zeros(12, np.float32), tensor, device.main)
    with pytest.raises(ValueError, match="float32"):
        device.download(np.zeros((3, 4), np.float64), tensor, device.main)


def test_a_download_into_memory_that_is_not_pinned(device: CudaDevice) -> None:
    tensor = filled(device, np.arange(10, dtype=np.int64))
    target = np.zeros(10, np.int64)
    device.download(target, tensor, device.main)
    device.main.record().wait()
    assert list(target) == list(range(10))


def test_one_stream_waits_for_another(device: CudaDevice) -> None:
    copies = device.stream()
    assert copies.handle != device.main.handle
    for value in range(20):
        tensor, target = filled(device, np.full(100_000, value, np.float32)), device.staging((100_000,), np.float32)
        copies.wait(device.main.record())
        device.download(target, tensor, copies)
        copies.record().wait()
        assert (target == value).all()


def test_events_are_timed_and_reused(device: CudaDevice) -> None:
    begin = device.main.record()
    filled(device, np.ones(100_000, np.float32))
    end = device.main.record()
    end.wait()
    assert begin.is_done
    assert end.is_done
    assert 0 <= device.main.elapsed_ms(begin, end) < 10_000
    handles = set()
    for _ in range(50):
        event = device.main.record()
        handles.add(event.handle)
        event.wait()
    assert len(handles) <= 2


def test_a_captured_graph_equals_plain_launches(device: CudaDevice) -> None:
    plain, replayed = (filled(device, np.arange(1, 101, dtype=np.float32)) for _ in range(2))
    clear_half(device, plain)
    replay = device.capture(device.main, lambda: clear_half(device, replayed))
    assert fetched(device, replayed).all(), "a capture executes nothing"
    replay.launch(device.main)
    assert np.array_equal(fetched(device, replayed), fetched(device, plain))
    device.upload(replayed, np.full(100, 3, np.float32), device.main)
    replay.launch(device.main)
    assert np.array_equal(fetched(device, replayed), [0] * 50 + [3] * 50)
    replay.close()
    replay.close()
    with pytest.raises(EngineError, match="closed"):
        replay.launch(device.main)


@pytest.mark.parametrize(
    "what", ["an upload", "a download", "memory", "pinned memory", "a stream", "an event", "a capture"]
)
def test_operations_that_are_refused_in_a_capture(device: CudaDevice, what: str) -> None:
    tensor = filled(device, np.ones(100, np.float32))
    values, target = np.zeros(100, np.float32), device.staging((100,), np.float32)
    wrong = {
        "an upload": lambda: device.upload(tensor, values, device.main),
        "a download": lambda: device.download(target, tensor, device.main),
        "memory": lambda: device.zeros((10,), np.float32),
        "pinned memory": lambda: device.staging((10,), np.float32),
        "a stream": device.stream,
        "an event": device.main.record,
        "a capture": lambda: device.capture(device.main, lambda: None),
    }

    def work() -> None:
        clear_half(device, tensor)
        wrong[what]()

    with pytest.raises(CaptureError, match="capture"):
        device.capture(device.main, work)
    assert fetched(device, tensor).all(), "none of the work ran"
    check_capture(device)


def test_a_cuda_error_in_a_capture(device: CudaDevice) -> None:
    tensor = filled(device, np.ones(100, np.float32))

    def work() -> None:
        from runtime.devices import cuda_calls

        clear_half(device, tensor)
        cuda_calls.take_device(100)

    with pytest.raises(CaptureError, match="cudaErrorStreamCaptureUnsupported"):
        device.capture(device.main, work)
    assert fetched(device, tensor).all()
    check_capture(device)


def test_an_exception_in_a_capture(device: CudaDevice) -> None:
    tensor = filled(device, np.ones(100, np.float32))

    def work() -> None:
        clear_half(device, tensor)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        device.capture(device.main, work)
    assert fetched(device, tensor).all()
    check_capture(device)


def check_capture(device: CudaDevice) -> None:
    tensor = filled(device, np.ones(100, np.float32))
    replay = device.capture(device.main, lambda: clear_half(device, tensor))
    replay.launch(device.main)
    assert np.array_equal(fetched(device, tensor), [0] * 50 + [1] * 50)
    replay.close()


def test_other_threads_copy_during_a_capture(device: CudaDevice) -> None:
    tensor, results = filled(device, np.ones(100, np.float32)), []
    ready, begun, done = threading.Event(), threading.Event(), threading.Event()

    def elsewhere() -> None:
        stream = device.stream()
        other, target = device.zeros((50,), np.float32), device.staging((50,), np.float32)
        device.upload(other, np.full(50, 3, np.float32), stream)
        ready.set()
        begun.wait(30)
        device.upload(other, np.full(50, 4, np.float32), stream)
        device.download(target, other, stream)
        stream.record().wait()
        results.append(target)
        done.set()

    def work() -> None:
        begun.set()
        clear_half(device, tensor)
        assert done.wait(30), "the other thread is blocked"

    thread = threading.Thread(target=elsewhere)
    thread.start()
    ready.wait(30)
    replay = device.capture(device.main, work)
    thread.join(30)
    assert (results[0] == 4).all()
    replay.launch(device.main)
    assert np.array_equal(fetched(device, tensor), [0] * 50 + [1] * 50)
    replay.close()


@pytest.mark.parametrize("is_main", [False, True])
def test_other_threads_take_memory_streams_and_events_during_a_capture(is_main: bool, device: CudaDevice) -> None:
    """Memory comes back from work before the capture, and goes to work behind it."""
    stream = device.main if is_main else device.stream()
    tensor, found = filled(device, np.ones(100, np.float32)), []
    last_user = filled(device, np.full(5000, 7, np.float32))
    address = last_user.address
    copied = device.zeros((5000,), np.float32)
    device.copy(copied, last_user, device.main)  # pending
    del last_user

    def elsewhere() -> None:
        memory, other, target = device.zeros((5000,), np.float32), device.stream(), device.staging((4,), np.float32)
        device.download(target, memory.view(4), other)
        other.record().wait()
        found.append((memory, target.copy(), device.is_capturing))

    def work() -> None:
        assert device.is_capturing
        thread = threading.Thread(target=elsewhere)
        thread.start()
        clear_half(device, tensor, stream)
        thread.join(30)
        assert found, "the other thread is blocked"

    replay = device.capture(stream, work)
    ((memory, values, was_capturing),) = found
    assert not was_capturing
    assert (memory.address, list(values)) == (address, [0.0] * 4)
    stream.record().wait()  # until the graph is on the device
    replay.launch(device.main)
    assert np.array_equal(fetched(device, tensor), [0] * 50 + [1] * 50)
    device.copy(tensor, memory.view(100), stream)
    stream.record().wait()
    assert not fetched(device, tensor).any()
    assert (fetched(device, copied) == 7).all()
    replay.close()


def test_captures_of_two_threads_take_turns(device: CudaDevice) -> None:
    """While one is made no garbage is collected, which the end of another must not allow again."""
    tensors, graphs, inside = [filled(device, np.ones(100, np.float32)) for _ in range(2)], dict[int, Any](), []

    def capture(index: int) -> None:
        stream = device.stream()

        def work() -> None:
            inside.append(index)
            assert not gc.isenabled()
            clear_half(device, tensors[index], stream)
            if index == 0:
                threads[1].start()
                threads[1].join(0.05)
            assert (inside[-1], gc.isenabled()) == (index, False)

        graphs[index] = device.capture(stream, work)
        stream.record().wait()

    threads = [threading.Thread(target=capture, args=(index,)) for index in range(2)]
    threads[0].start()
    for thread in threads:  # the first starts the second
        thread.join(30)
    for graph, tensor in zip((graphs[0], graphs[1]), tensors, strict=True):
        graph.launch(device.main)
        assert np.array_equal(fetched(device, tensor), [0] * 50 + [1] * 50)
        graph.close()


def test_too_large_an_allocation_raises_out_of_memory(device: CudaDevice) -> None:
    with pytest.raises(OutOfMemoryError, match="cudaErrorMemoryAllocation") as caught:
        device.zeros((1 << 48,), np.float32)
    assert "lower rows" in caught.value.fix
    assert np.array_equal(fetched(device, filled(device, np.ones(10, np.float32))), np.ones(10))


def test_an_allocation_reduces_free_memory(device: CudaDevice) -> None:
    before = device.free_bytes
    tensor = device.zeros((80 << 20,), np.uint8)
    assert before - device.free_bytes >= tensor.size_bytes


def test_every_allocation_is_counted(device: CudaDevice) -> None:
    tensor = filled(device, np.ones(10, np.float32))
    before = device.allocations
    device.upload(tensor, np.zeros(10, np.float32), device.main)
    assert device.allocations == before
    kept = [device.zeros((3,), np.float32), device.staging((3,), np.float32), device.mirror(tensor)]
    assert device.allocations == before + len(kept)


def test_an_array_outlives_its_device(device: CudaDevice) -> None:
    array = fetched(device, filled(device, np.arange(10, dtype=np.float32)))
    device.close()
    assert list(array) == list(range(10))
    device.close()
