#pragma once

// The functions that run in place of an operator that may read parameters in chunks.
// interception.cpp has these functions, intercepted_operators.cpp gives them to LibTorch's
// operators.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace elixir {

// LibTorch dispatches by tensors and plain lists of them alone: a tensor inside anything else
// brings no key, and neither does a storage. Operators that take such come by at a key that every
// call has, and go on below it.
inline constexpr c10::DispatchKey kEveryCallsKey = c10::DispatchKey::BackendSelect;

// Each pins the chunks of all arguments while the operator runs. Throws what the operator throws,
// and Error where a parameter would be written to or its source is gone. Any thread.

// At kChunkKey. Runs the operator below it, or has the thread's observer run it.
void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
// At kEveryCallsKey, for operators with containers. Runs the operator below it.
void intercept_containers(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                          torch::jit::Stack* stack);
// At a key above kChunkKey. Runs `kernel`, which was registered there.
void intercept_layout(const c10::KernelFunction& kernel, const c10::OperatorHandle& op,
                      c10::DispatchKeySet keys, torch::jit::Stack* stack);
// at::as_strided at kChunkKey: the one view that could leave its tensor, since behind a parameter
// lies its chunk's next one. Error: it asks for elements that are not its own.
at::Tensor view_as_strided(c10::DispatchKeySet keys, const at::Tensor& self,
                           c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                           std::optional<c10::SymInt> offset);

// A view changes sizes and strides, not bytes: nothing to gather.
bool is_view(const c10::FunctionSchema& schema);

// Gives these functions to every operator there is, and to those that libraries register later,
// before their kernels come. The first call does it. Any thread.
void intercept_operators();

}  // namespace elixir
