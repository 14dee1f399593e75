#include "tests/fake_cuda/elixir_kernels.h"

#include <cstdio>
#include <vector>

#include "base/norm_sum.h"
#include "kernels/norm_work.h"
#include "kernels/thread_work.h"
#include "tests/fake_cuda/device_memory.h"
#include "tests/fake_cuda/settings.h"

namespace fake_cuda {
namespace {

using elixir::ComputeType;
using elixir::kernels::AdamArrays;
using elixir::kernels::CompletionOf;
using elixir::kernels::ElementOf;
using elixir::optim::AdamConstants;

template <class T>
T argument(void** arguments, int i) {
  return *static_cast<const T*>(arguments[i]);
}

template <class T>
T* on_host(T* memory) {
  return memory == nullptr ? nullptr : reinterpret_cast<T*>(reachable(memory));
}
template <>
void* on_host(void* memory) {
  return memory == nullptr ? nullptr : reachable(memory);
}

Access reads(const void* memory, size_t bytes) {
  return {reinterpret_cast<uintptr_t>(memory), memory == nullptr ? 0 : bytes, false};
}
Access writes(const void* memory, size_t bytes) {
  return {reinterpret_cast<uintptr_t>(memory), memory == nullptr ? 0 : bytes, true};
}

Work work(const char* name, std::vector<Access> accesses, std::function<void()> run) {
  return {.name = name,
          .kind = WorkKind::kElixirKernel,
          .duration_ns = settings().kernel_ns,
          .accesses = std::move(accesses),
          .run = std::move(run)};
}

// ---- Adam ----

struct AdamLaunch {
  AdamArrays arrays;
  std::vector<const void*> grads;
  size_t numel;
  AdamConstants<float> step;
};

template <ComputeType kType, ComputeType kGrad>
void run_adam(const AdamLaunch& launch) {
  const AdamArrays& given = launch.arrays;
  const AdamArrays arrays = {on_host(given.param), on_host(given.completion),
                             on_host(given.exp_avg), on_host(given.exp_avg_sq)};
  std::vector<const void*> grads;
  for (const void* grad : launch.grads) grads.push_back(reachable(grad));
  const size_t blocks = elixir::kernels::AdamPart::blocks(launch.numel);
  for (size_t block = 0; block < blocks; ++block) {
    for (int thread = 0; thread < elixir::kernels::kThreads; ++thread) {
      elixir::kernels::adam_thread<kType, kGrad>(arrays, grads.data(),
                                                 static_cast<int>(grads.size()), launch.numel,
                                                 launch.step, block, thread);
    }
  }
}

template <ComputeType kType, ComputeType kGrad>
Work adam(const AdamLaunch& launch) {
  const size_t numel = launch.numel;
  const AdamArrays& arrays = launch.arrays;
  const size_t completion_bytes =
      kType == ComputeType::kFp32 ? 0 : numel * sizeof(CompletionOf<kType>);
  std::vector<Access> accesses = {writes(arrays.param, numel * sizeof(ElementOf<kType>)),
                                  writes(arrays.completion, completion_bytes),
                                  writes(arrays.exp_avg, numel * sizeof(float)),
                                  writes(arrays.exp_avg_sq, numel * sizeof(float))};
  for (const void* grad : launch.grads) {
    accesses.push_back(reads(grad, numel * sizeof(ElementOf<kGrad>)));
  }
  return work("Elixir's Adam", std::move(accesses), [launch] { run_adam<kType, kGrad>(launch); });
}

// adam_kernel(arrays, grad, numel, step)
template <ComputeType kType, ComputeType kGrad>
Work adam_kernel(void** arguments) {
  return adam<kType, kGrad>({argument<AdamArrays>(arguments, 0),
                             {argument<const void*>(arguments, 1)},
                             argument<size_t>(arguments, 2),
                             argument<AdamConstants<float>>(arguments, 3)});
}

// adam_sum_kernel(arrays, grads, n_grads, numel, step)
template <ComputeType kType>
Work adam_sum_kernel(void** arguments) {
  const auto* const grads = static_cast<const void* const*>(arguments[1]);
  const int n_grads = argument<int>(arguments, 2);
  return adam<kType, kType>(
      {argument<AdamArrays>(arguments, 0), std::vector<const void*>(grads, grads + n_grads),
       argument<size_t>(arguments, 3), argument<AdamConstants<float>>(arguments, 4)});
}

// ---- norms ----

// The leaf of `thread`, which its run of threads adds up together.
template <ComputeType kType>
double leaf_of(const ElementOf<kType>* values, size_t numel, size_t turn, int thread,
               uint64_t& nonfinite) {
  using namespace elixir::kernels;
  const size_t begin = leaf_begin(turn, thread, thread % kLeafThreads);
  LaneSums sums[kLeafThreads];
  uint32_t here = 0;
  for (int t = 0; t < kLeafThreads; ++t) {
    sums[t] = square_lanes(load_leaf<kType>(values, numel, begin, t), here);
  }
  nonfinite += here;
  return add_up(add(add(sums[0], sums[2]), add(sums[1], sums[3])));
}

template <ComputeType kType>
void run_norm(const ElementOf<kType>* values, size_t numel, elixir::NormSum* result) {
  using namespace elixir::kernels;
  for (size_t turn = 0; turn < norm_turns(numel); ++turn) {
    for (int thread = 0; thread < kNormThreads; ++thread) {
      elixir::add_leaf(*result, leaf_of<kType>(values, numel, turn, thread, result->nonfinite));
    }
  }
}

// norm_kernel(values, numel, result), which adds to what `result` holds.
template <ComputeType kType>
Work norm_kernel(void** arguments) {
  const auto* const values = argument<const ElementOf<kType>*>(arguments, 0);
  const auto numel = argument<size_t>(arguments, 1);
  auto* const result = argument<elixir::NormSum*>(arguments, 2);
  return work("Elixir's norm",
              {reads(values, numel * sizeof(ElementOf<kType>)), writes(result, sizeof *result)},
              [=] { run_norm<kType>(on_host(values), numel, on_host(result)); });
}

// ---- which ----

struct Kernel {
  std::string name;  // "adam_kernel"
  std::vector<ComputeType> types;
};

// "void elixir::kernels::(anonymous namespace)::adam_kernel<(elixir::ComputeType)0, ...>(...)"
std::optional<Kernel> parse(const std::string& name) {
  if (name.find("elixir::kernels::") == std::string::npos) return std::nullopt;
  Kernel kernel;
  const std::string type = "(elixir::ComputeType)";
  const size_t arguments = name.find('<' + type);
  if (arguments == std::string::npos) return std::nullopt;
  const size_t colon = name.rfind(':', arguments);
  kernel.name = name.substr(colon + 1, arguments - colon - 1);
  const size_t end = name.find('>', arguments);
  for (size_t at = name.find(type, arguments); at < end; at = name.find(type, at + 1)) {
    kernel.types.push_back(static_cast<ComputeType>(name[at + type.size()] - '0'));
  }
  return kernel;
}

template <ComputeType kType>
std::optional<Work> kernel_of(const Kernel& kernel, void** arguments) {
  constexpr ComputeType kFp32 = ComputeType::kFp32;
  if (kernel.name == "norm_kernel") return norm_kernel<kType>(arguments);
  if (kernel.name == "adam_sum_kernel") return adam_sum_kernel<kType>(arguments);
  if (kernel.types.size() != 2) return std::nullopt;
  if (kernel.name == "adam_kernel") {
    return kernel.types[1] == kType ? adam_kernel<kType, kType>(arguments)
                                    : adam_kernel<kType, kFp32>(arguments);
  }
  return std::nullopt;
}

std::optional<Work> find(const Kernel& kernel, void** arguments) {
  if (kernel.types.empty()) return std::nullopt;
  switch (kernel.types[0]) {
    case ComputeType::kBf16:
      return kernel_of<ComputeType::kBf16>(kernel, arguments);
    case ComputeType::kFp16:
      return kernel_of<ComputeType::kFp16>(kernel, arguments);
    case ComputeType::kFp32:
      return kernel_of<ComputeType::kFp32>(kernel, arguments);
  }
  return std::nullopt;
}

}  // namespace

std::optional<Work> elixir_kernel(const std::string& name, void** arguments) {
  const std::optional<Kernel> kernel = parse(name);
  if (!kernel) return std::nullopt;
  std::optional<Work> work = find(*kernel, arguments);
  if (!work) {
    std::fprintf(stderr, "fake CUDA: a kernel of Elixir's that the fake does not know: %s\n",
                 name.c_str());
    std::abort();
  }
  return work;
}

}  // namespace fake_cuda
