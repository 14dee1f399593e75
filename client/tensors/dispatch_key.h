#pragma once

#include <c10/core/DispatchKey.h>

namespace elixir {

// The extra dispatch key that parameters in chunks carry, and by which operators on them are
// intercepted. PyTorch reserves it for random number generators of other libraries and has no
// kernel for it, in all releases that Elixir runs on (tests/client/torch_version_test.cpp looks).
// It lies below autograd and autocast, so the interception sees each leaf operator with exactly the
// tensors that it reads. It names no device: a tensor that carries it keeps the autograd and the
// autocast of its own device. Where a sparse, MKLDNN or nested tensor comes along, that one's
// kernel is chosen first. Note: docs/design/elixir.md, "interception below autograd".
inline constexpr c10::DispatchKey kChunkKey = c10::DispatchKey::CustomRNGKeyId;

// The mode under which client/tensors/meta_init.h builds modules. PyTorch reserves it for deferred
// initialisation. It lies above autograd, so MetaInit sees an initialisation as the module calls
// it.
inline constexpr c10::DispatchKey kMetaInitKey = c10::DispatchKey::DeferredInit;

}  // namespace elixir
