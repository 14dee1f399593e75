#pragma once

namespace elixir {

// Registers stand-ins for libtorch_cuda with torch. Each loads the library when torch asks for
// CUDA, and loading replaces it with torch's own:
// - CUDA's hooks, for torch::manual_seed or a first backward()
// - the guard of a CUDA device, for tensor.to(at::kCUDA)
// - an operator's kernel, for torch::ones(8, at::kCUDA)
//
// Call it once, before main(). It does nothing if libtorch_cuda is linked.
void load_cuda_on_demand();

}  // namespace elixir
