#pragma once

#include <c10/core/DispatchKey.h>

namespace elixir {

// The extra dispatch key that parameters in chunks carry, and by which operators on them are
// intercepted. PyTorch reserves it for out-of-core tensors. It lies below autograd and autocast, so
// the interception sees each leaf operator with exactly the tensors that it reads.
// Note: docs/design/elixir.md, "interception below autograd".
inline constexpr c10::DispatchKey kChunkKey = c10::DispatchKey::Fake;

// The mode under which client/tensors/meta_init.h builds modules. PyTorch reserves it for deferred
// initialisation. It lies above autograd, so MetaInit sees an initialisation as the module calls
// it.
inline constexpr c10::DispatchKey kMetaInitKey = c10::DispatchKey::DeferredInit;

}  // namespace elixir
