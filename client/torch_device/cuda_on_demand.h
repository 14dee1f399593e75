#pragma once

namespace elixir {

// What stands in torch's registries in place of libtorch_cuda until that is there, and loads it
// when torch asks for CUDA: for its hooks (torch::manual_seed, a first backward()), for the guard
// of a CUDA device (tensor.to(at::kCUDA)), for an operator's kernel (torch::ones(8, at::kCUDA)).
// Loading puts torch's own in their places. Call it before main(), once; it does nothing where
// libtorch_cuda is linked.
void load_cuda_on_demand();

}  // namespace elixir
