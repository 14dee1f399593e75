// Streams and events.

#include "tests/fake_cuda/call.h"

namespace fake_cuda {
namespace {

// body(lock, stream) -> cudaError_t
template <class Body>
cudaError_t stream_call(const char* name, cudaStream_t handle, Body body) {
  return call(name, [&](Lock& lock) {
    Stream* const stream = find_stream(handle);
    return stream == nullptr ? cudaErrorInvalidResourceHandle : body(lock, *stream);
  });
}

template <class Body>
cudaError_t event_call(const char* name, cudaEvent_t handle, Body body) {
  return call(name, [&](Lock& lock) {
    Event* const event = find_event(handle);
    return event == nullptr ? cudaErrorInvalidResourceHandle : body(lock, *event);
  });
}

cudaError_t record(const char* name, cudaEvent_t event_handle, cudaStream_t handle) {
  return stream_call(name, handle, [&](Lock&, Stream& stream) {
    Event* const event = find_event(event_handle);
    if (event == nullptr || event->device != stream.device) return cudaErrorInvalidResourceHandle;
    record_event(stream, *event);
    return cudaSuccess;
  });
}

}  // namespace

FAKE_CUDA_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  return call("cudaStreamCreate", [&](Lock&) {
    *handle = reinterpret_cast<cudaStream_t>(
        new_stream(this_thread().device, (flags & cudaStreamNonBlocking) == 0));
    return cudaSuccess;
  });
}

FAKE_CUDA_API cudaError_t cudaStreamCreate(cudaStream_t* handle) {
  return cudaStreamCreateWithFlags(handle, 0);
}

FAKE_CUDA_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int) {
  return cudaStreamCreateWithFlags(handle, flags);
}

FAKE_CUDA_API cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return stream_call("cudaStreamDestroy", handle, [](Lock&, Stream& stream) {
    stream.destroyed = true;
    return cudaSuccess;
  });
}

FAKE_CUDA_API cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return stream_call("cudaStreamSynchronize", handle, [](Lock& lock, Stream& stream) {
    wait_for_stream(lock, stream, "cudaStreamSynchronize");
    return cudaSuccess;
  });
}

FAKE_CUDA_API cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return stream_call("cudaStreamQuery", handle, [](Lock&, Stream& stream) {
    return find_idle(stream) ? cudaSuccess : cudaErrorNotReady;
  });
}

FAKE_CUDA_API cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle,
                                              unsigned) {
  return stream_call("cudaStreamWaitEvent", handle, [&](Lock&, Stream& stream) {
    Event* const event = find_event(event_handle);
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    wait_for_event(stream, *event);
    return cudaSuccess;
  });
}

FAKE_CUDA_API cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t callback,
                                                void* data, unsigned) {
  return stream_call("cudaStreamAddCallback", handle, [&](Lock&, Stream& stream) {
    enqueue(stream, {.name = "a callback", .run = [=] { callback(handle, cudaSuccess, data); }});
    return cudaSuccess;
  });
}

FAKE_CUDA_API cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function,
                                             void* data) {
  return stream_call("cudaLaunchHostFunc", handle, [&](Lock&, Stream& stream) {
    enqueue(stream, {.name = "a host function", .run = [=] { function(data); }});
    return cudaSuccess;
  });
}

FAKE_CUDA_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  return call("cudaEventCreate", [&](Lock&) {
    runtime().events.push_back(std::make_unique<Event>());
    Event* const event = runtime().events.back().get();
    event->device = this_thread().device;
    event->timed = (flags & cudaEventDisableTiming) == 0;
    *handle = reinterpret_cast<cudaEvent_t>(event);
    return cudaSuccess;
  });
}

FAKE_CUDA_API cudaError_t cudaEventCreate(cudaEvent_t* handle) {
  return cudaEventCreateWithFlags(handle, cudaEventDefault);
}

FAKE_CUDA_API cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return event_call("cudaEventDestroy", handle, [](Lock&, Event& event) {
    event.destroyed = true;  // its memory stays: streams may still be on their way to it
    return cudaSuccess;
  });
}

FAKE_CUDA_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return record("cudaEventRecord", event, stream);
}

FAKE_CUDA_API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                                   unsigned) {
  return record("cudaEventRecord", event, stream);
}

FAKE_CUDA_API cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return event_call("cudaEventQuery", handle, [](Lock&, Event& event) {
    return find_done(event) ? cudaSuccess : cudaErrorNotReady;
  });
}

FAKE_CUDA_API cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return event_call("cudaEventSynchronize", handle, [](Lock& lock, Event& event) {
    wait_for_record(lock, event, "cudaEventSynchronize");
    return cudaSuccess;
  });
}

FAKE_CUDA_API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin_handle,
                                               cudaEvent_t end_handle) {
  return event_call("cudaEventElapsedTime", begin_handle, [&](Lock&, Event& begin) {
    const Event* const end = find_event(end_handle);
    if (end == nullptr || !begin.timed || !end->timed) return cudaErrorInvalidResourceHandle;
    if (begin.recorded == 0 || end->recorded == 0) return cudaErrorInvalidResourceHandle;
    if (begin.done < begin.recorded || end->done < end->recorded) return cudaErrorNotReady;
    *milliseconds = static_cast<float>(static_cast<double>(end->end_ns - begin.end_ns) * 1e-6);
    return cudaSuccess;
  });
}

// No capture is ever under way.
FAKE_CUDA_API cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

FAKE_CUDA_API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status,
                                                   unsigned long long* id, cudaGraph_t* graph,
                                                   const cudaGraphNode_t** nodes,
                                                   const cudaGraphEdgeData** edges, size_t* n) {
  *status = cudaStreamCaptureStatusNone;
  if (id != nullptr) *id = 0;
  if (graph != nullptr) *graph = nullptr;
  if (nodes != nullptr) *nodes = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (n != nullptr) *n = 0;
  return cudaSuccess;
}

FAKE_CUDA_API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}

}  // namespace fake_cuda
