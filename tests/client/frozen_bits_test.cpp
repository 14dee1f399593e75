// What is not trained comes through bit by bit: programs keep quantised weights in 16-bit types,
// where bits that are a NaN mean something else.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "base/compute_type_names.h"
#include "client/elixir.h"
#include "client/tensors/scalar_type.h"
#include "shm/shape.h"
#include "tests/client/saved_module.h"
#include "tests/client/small_training.h"
#include "tests/client/with_elixird.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir::test {
namespace {

constexpr int64_t kPatterns = 1 << 16;

// Every pattern of 16 bits, from `first` on.
at::Tensor patterns(ComputeType type, int64_t first) {
  const at::Tensor bits = (at::arange(kPatterns) + first).to(at::kShort);
  return bits.view(scalar_type(type)).reshape({256, 256});
}

bool equal_bits(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(a.detach().view(at::kShort), b.detach().view(at::kShort));
}

struct Quantised : torch::nn::Module {
  explicit Quantised(ComputeType type, bool filled = true) {
    trained = register_parameter("trained", at::ones({64}));
    for (int64_t i = 0; i < 3; ++i) {
      const at::Tensor bits =
          filled ? patterns(type, 1000 * i) : at::zeros({256, 256}, scalar_type(type));
      payload.push_back(register_parameter("payload" + std::to_string(i), bits, false));
    }
  }
  at::Tensor trained;
  std::vector<at::Tensor> payload;
};

class FrozenBits : public WithElixird {};

void expect_patterns(const Quantised& model, ComputeType type, int64_t first, const char* when) {
  for (int64_t i = 0; i < 3; ++i) {
    // By an operator, so out of a chunk.
    const at::Tensor here = model.payload[static_cast<size_t>(i)].detach().clone();
    EXPECT_TRUE(equal_bits(here, patterns(type, first + 1000 * i)))
        << "payload " << i << ", " << when;
  }
}

void step(Quantised& model, AdamW& optimizer) {
  optimizer.zero_grad();
  optimizer.scale(model.trained.square().sum()).backward();
  optimizer.step();
}

struct BitsCase {
  ComputeType type;
  uint32_t ranks;
  shm::Exchange exchange;
  uint64_t chunk_numel;
};

void expect_unchanged(const BitsCase& of, const std::string& folder) {
  const auto options_of = [&](const LaunchEnvironment& environment) {
    Options options;
    options.dtype = of.type;
    if (of.type == ComputeType::kFp16) options.loss_scale = 2;
    options.environment = environment;
    options.layout = {.chunk_numel = of.chunk_numel, .rcache_blocks = 3, .exchange = of.exchange};
    return options;
  };
  run_ranks(of.ranks, [&](const LaunchEnvironment& environment) {
    Quantised model(of.type, environment.rank == 0);  // others get rank 0's
    AdamW optimizer(model, AdamWOptions{}, options_of(environment));
    expect_patterns(model, of.type, 0, "from the module");
    step(model, optimizer);
    expect_patterns(model, of.type, 0, "after a step");
    for (int64_t i = 0; i < 3; ++i) {
      optimizer.set_parameter(model.payload[static_cast<size_t>(i)],
                              patterns(of.type, 7 + 1000 * i));
    }
    expect_patterns(model, of.type, 7, "set_parameter()");
    step(model, optimizer);
    optimizer.save(folder).wait();
  });
  run_ranks(of.ranks, [&](const LaunchEnvironment& environment) {
    Quantised model(of.type, false);
    Options options = options_of(environment);
    options.load_from = folder;
    AdamW optimizer(model, AdamWOptions{}, options);
    expect_patterns(model, of.type, 7, "from a checkpoint");
    optimizer.release();
    expect_patterns(model, of.type, 7, "release()");
  });
}

// ---- every kind of tensor: its bits and type, or an error with its name ----

enum class Becomes : uint8_t {
  kKept,       // it has its bits and its type
  kConverted,  // it lies in a chunk and has the chunks' type; the log says so
  kRefused     // in Options::leave_out it is kept
};

struct Kind {
  const char* name;
  Becomes becomes;
  std::function<at::Tensor()> make;
  const char* said = "";  // by the error
  bool shared = true;     // with several ranks, where it is left out
};

at::Tensor payload(at::ScalarType type) { return at::arange(12).to(at::kByte).view(type); }

// Memory that no operator of this process can read.
at::Tensor on_cuda() {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 16,
                       at::DataPtr(nullptr, at::Device(at::kCUDA, 0)), nullptr, false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA),
      caffe2::TypeMeta::Make<float>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({4});
  return tensor;
}

at::Tensor floats() { return at::sin(at::arange(24).to(at::kFloat)).reshape({4, 6}); }

// In chunks of BF16.
const Kind kKinds[] = {
    {"BF16", Becomes::kKept, [] { return patterns(ComputeType::kBf16, 0); }},
    {"BF16, transposed", Becomes::kKept, [] { return floats().to(at::kBFloat16).t(); }},
    {"BF16, a view", Becomes::kKept, [] { return floats().to(at::kBFloat16).slice(1, 1, 5, 2); }},
    {"BF16, one element", Becomes::kKept, [] { return at::full({}, 1.5, at::kBFloat16); }},
    {"BF16, no element", Becomes::kKept,
     [] {
       return at::empty({0, 3}, at::kBFloat16);
     }},
    {"BF16, negated", Becomes::kKept, [] { return at::_neg_view(floats().to(at::kBFloat16)); }},
    {"FP16", Becomes::kConverted, [] { return floats().to(at::kHalf); }},
    {"FP32", Becomes::kConverted, [] { return floats(); }},
    {"FP64", Becomes::kConverted, [] { return floats().to(at::kDouble).t(); }},
    {"FP8 E4M3", Becomes::kKept, [] { return payload(at::kFloat8_e4m3fn); }},
    {"FP8 E5M2", Becomes::kKept, [] { return payload(at::kFloat8_e5m2); }},
    {"FP8 E8M0", Becomes::kKept, [] { return payload(at::kFloat8_e8m0fnu); }},
    {"FP4", Becomes::kKept, [] { return payload(at::kFloat4_e2m1fn_x2); }},
    {"bool", Becomes::kKept, [] { return floats() > 0; }},
    {"uint8", Becomes::kKept, [] { return payload(at::kByte); }},
    {"int8, transposed", Becomes::kKept,
     [] {
       return payload(at::kChar).reshape({3, 4}).t();
     }},
    {"uint16", Becomes::kKept, [] { return payload(at::kUInt16); }},
    {"int64, one element", Becomes::kKept, [] { return at::full({}, int64_t{1} << 40); }},
    {"int64, no element", Becomes::kKept, [] { return at::empty({0}, at::kLong); }},
    {"complex", Becomes::kKept, [] { return at::complex(floats(), floats().cos()); }},
    {"complex, conjugated", Becomes::kKept,
     [] { return at::complex(floats(), floats().cos()).conj(); }},
    {"sparse", Becomes::kRefused, [] { return floats().to_sparse(); }, "not dense", false},
    {"sparse integers", Becomes::kRefused, [] { return at::eye(3, at::kLong).to_sparse(); },
     "not dense", false},
    {"compressed rows", Becomes::kRefused, [] { return floats().to_sparse_csr(); }, "not dense",
     false},
    {"quantised", Becomes::kRefused,
     [] { return at::quantize_per_tensor(floats(), 0.25, 3, at::kQInt8); }, "quantised", false},
    {"quantised by channel", Becomes::kRefused,
     [] {
       return at::quantize_per_channel(floats(), at::ones({4}), at::zeros({4}, at::kLong), 0,
                                       at::kQUInt8);
     },
     "quantised", false},
    {"nested", Becomes::kRefused,
     [] {
       return at::_nested_tensor_from_tensor_list({floats(), floats()});
     },
     "nested", false},
};

bool same(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.layout() != b.layout()) return false;
  if (a.is_nested()) return b.is_nested();
  if (a.sizes() != b.sizes()) return false;
  if (a.layout() == at::kSparseCsr) return at::equal(a.to_dense(), b.to_dense());
  if (a.layout() == at::kSparse) return at::equal(a.to_dense(), b.to_dense());
  if (a.is_quantized()) return at::equal(a, b);
  const auto bytes_of = [](const at::Tensor& tensor) {
    return tensor.resolve_conj().resolve_neg().clone(at::MemoryFormat::Contiguous);
  };
  const at::Tensor left = bytes_of(a), right = bytes_of(b);
  return left.nbytes() == 0 ||
         std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

// What is logged while a model of one frozen parameter has an optimizer, which `look` gets. (Ranks
// in threads share one log: "" with `environment`.)
std::string log_of_frozen(const at::Tensor& frozen, bool left_out,
                          const LaunchEnvironment* environment,
                          const std::function<void(AdamW&)>& look) {
  ModelTensors model;
  model.parameters = {{"trained", at::ones({64}).requires_grad_()}, {"frozen", frozen}};
  Options options;
  options.dtype = ComputeType::kBf16;
  if (environment != nullptr) options.environment = *environment;
  if (left_out) {
    options.leave_out = [](const std::string& name, const at::Tensor&) { return name == "frozen"; };
  }
  if (environment == nullptr) ::testing::internal::CaptureStderr();
  std::exception_ptr failure;
  try {
    AdamW optimizer(model, AdamWOptions{}, options);
    look(optimizer);
  } catch (...) {
    failure = std::current_exception();
  }
  const std::string log =
      environment == nullptr ? ::testing::internal::GetCapturedStderr() : std::string();
  if (failure) std::rethrow_exception(failure);
  return log;
}

std::string refusal_of_frozen(const at::Tensor& frozen, Code code) {
  return refusal_of([&] { log_of_frozen(frozen, false, nullptr, [](AdamW&) {}); }, code);
}

TEST_F(FrozenBits, EachKindOfTensorIsKeptOrConvertedInTheLogOrRefusedByName) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    const at::Tensor frozen = kind.make();
    if (kind.becomes == Becomes::kRefused) {
      EXPECT_THAT(
          refusal_of_frozen(frozen, Code::kInvalidArgument),
          AllOf(HasSubstr("'frozen'"), HasSubstr(kind.said), HasSubstr("Options::leave_out")));
      EXPECT_TRUE(same(frozen, kind.make())) << "a model that was refused has changed";
      continue;
    }
    const bool converted = kind.becomes == Becomes::kConverted;
    const std::string log = log_of_frozen(frozen, false, nullptr, [&](AdamW& optimizer) {
      EXPECT_TRUE(same(frozen, converted ? kind.make().to(at::kBFloat16) : kind.make()));
      optimizer.release();
      EXPECT_TRUE(converted || same(frozen, kind.make())) << "after release()";
      EXPECT_EQ(frozen.scalar_type(), kind.make().scalar_type());
    });
    EXPECT_EQ(log.find("event=frozen_type") != std::string::npos, converted) << log;
  }
}

TEST_F(FrozenBits, EachKindOfTensorThatIsLeftOutIsKept) {
  const elixir::testing::TemporaryFolder folder;
  int saves = 0;
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    const at::Tensor frozen = kind.make();
    const std::string log = log_of_frozen(frozen, true, nullptr, [&](AdamW& optimizer) {
      EXPECT_TRUE(same(frozen, kind.make())) << frozen.dtype();
      optimizer.save(folder.path("saved" + std::to_string(++saves))).wait();
      optimizer.release();
      EXPECT_TRUE(same(frozen, kind.make())) << "after release()";
    });
    if (!kind.shared) {
      EXPECT_THAT(log, HasSubstr("event=not_saved tensor=\"frozen\""));
    }
  }
}

TEST_F(FrozenBits, EachKindOfTensorThatIsLeftOutIsRankZerosOrRefusedByName) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    const auto run = [&] {
      run_ranks(2, [&](const LaunchEnvironment& environment) {
        at::Tensor frozen = kind.make();
        if (environment.rank == 1 && kind.shared) {  // of other values, strides, and signs put off
          frozen = at::empty(frozen.sizes(), frozen.options()).zero_();
        }
        log_of_frozen(frozen, true, &environment,
                      [&](AdamW&) { EXPECT_TRUE(same(frozen, kind.make())) << frozen.dtype(); });
      });
    };
    if (kind.shared) {
      run();
    } else {
      EXPECT_THAT(refusal_of(run, Code::kInvalidArgument),
                  AllOf(HasSubstr("'frozen'"), HasSubstr(kind.said), HasSubstr("one rank")));
    }
  }
}

TEST_F(FrozenBits, AFrozenTensorWhoseBytesCannotBeReadIsRefusedByName) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kLong, at::kFloat8_e4m3fn}) {
    const at::Tensor meta = at::empty({4}, at::TensorOptions(type).device(at::kMeta));
    EXPECT_THAT(refusal_of_frozen(meta, Code::kBadInput),
                AllOf(HasSubstr("'frozen' has no values"), HasSubstr("elixir::MetaInit")));
    at::Tensor of_a_class = at::empty({4}, type);
    of_a_class.unsafeGetTensorImpl()->set_python_dispatch(true);
    EXPECT_THAT(refusal_of_frozen(of_a_class, Code::kInvalidArgument),
                AllOf(HasSubstr("'frozen' is of a tensor class"), HasSubstr("Options::leave_out")));
    of_a_class.unsafeGetTensorImpl()->set_python_dispatch(false);
  }
  EXPECT_THAT(refusal_of_frozen(on_cuda(), Code::kInvalidArgument),
              AllOf(HasSubstr("'frozen' lies on cuda:0"), HasSubstr("Options::leave_out")));
}

// ---- checkpoints without what is not trained ----

struct Adapted : torch::nn::Module {
  explicit Adapted(double base_value = 1) {
    const auto options = torch::nn::LinearOptions(32, 32).bias(false);
    for (int i = 0; i < 4; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(options)));
      const at::NoGradGuard no_grad;
      layers.back()->weight.copy_(
          at::sin(at::arange(32 * 32).reshape({32, 32}) * (i + base_value)));
      layers.back()->weight.requires_grad_(i == 3);
    }
  }
  std::vector<torch::nn::Linear> layers;
};

uint64_t train(Adapted& model, AdamW& optimizer, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; ++i) {
    optimizer.zero_grad();
    at::Tensor x =
        at::cos(at::arange(4 * 32, at::kFloat) * static_cast<double>(i + 1)).reshape({4, 32});
    for (torch::nn::Linear& layer : model.layers) x = at::tanh(layer->forward(x));
    x.square().mean().backward();
    optimizer.step();
  }
  return optimizer.weights_xxh64();
}

TEST_F(FrozenBits, ACheckpointWithoutTheBaseGoesOnBesideTheSameBase) {
  const elixir::testing::TemporaryFolder folder;
  constexpr int64_t kSavedAt = 3, kSteps = 6;
  for (const uint32_t ranks : {1u, 2u}) {
    const std::string path = folder.path("saved" + std::to_string(ranks));
    const auto run = [&](uint32_t n, uint64_t chunk_numel, bool resumes, double base = 1) {
      uint64_t hash = 0;
      run_ranks(n, [&](const LaunchEnvironment& environment) {
        Adapted model(base);
        Options options;
        options.environment = environment;
        options.layout = {.chunk_numel = chunk_numel, .rcache_blocks = 4};
        if (resumes) options.load_from = path;
        AdamW optimizer(model, AdamWOptions{.lr = 1e-2}, options);
        if (!resumes) {
          train(model, optimizer, 0, kSavedAt);
          optimizer.save(path + "_before", {.frozen = false}).wait();
          optimizer.save(path, {.frozen = false}).wait();  // the hash is known
        }
        const uint64_t mine = train(model, optimizer, kSavedAt, kSteps);
        if (environment.rank == 0) hash = mine;
      });
      return hash;
    };
    const uint64_t whole = run(ranks, 1024, false);
    std::ifstream file(path + "/model.safetensors.index.json");
    const std::string index(std::istreambuf_iterator<char>(file), {});
    EXPECT_THAT(index, HasSubstr("layer3.weight"));
    EXPECT_THAT(index, Not(HasSubstr("layer0.weight")));
    // The same base, however it is cut: shards and chunks are other ones.
    for (const uint64_t chunk_numel : {uint64_t{384}, uint64_t{1024}, uint64_t{4096}}) {
      EXPECT_EQ(run(ranks, chunk_numel, true), whole) << ranks << " ranks, " << chunk_numel;
    }
    EXPECT_NE(run(3 - ranks, 1024, true), 0u);
    const auto other = [&] { (void)run(ranks, 1024, true, /*base=*/1.5); };
    EXPECT_THAT(refusal_of(other, Code::kBadInput),
                AllOf(HasSubstr("saved without what is not trained, 3 parameters"),
                      HasSubstr("build it from the same base")));
  }
}

TEST_F(FrozenBits, ALoadInMidRunComparesTheBase) {
  const elixir::testing::TemporaryFolder folder;
  Adapted model;
  Options options;
  options.layout = {.chunk_numel = 1024, .rcache_blocks = 4};
  AdamW optimizer(model, AdamWOptions{.lr = 1e-2}, options);
  train(model, optimizer, 0, 2);
  optimizer.save(folder.path("a"), {.frozen = false}).wait();
  const uint64_t whole = train(model, optimizer, 2, 4);
  optimizer.load(folder.path("a"));
  EXPECT_EQ(train(model, optimizer, 2, 4), whole);
  optimizer.save(folder.path("b"), {.frozen = false}).wait();
  optimizer.set_parameter(model.layers[0]->weight, at::zeros({32, 32}));
  // The hash that the last save found is not this base's.
  optimizer.save(folder.path("c"), {.frozen = false}).wait();
  optimizer.load(folder.path("c"));
  EXPECT_THAT(refusal_of([&] { optimizer.load(folder.path("a")); }, Code::kBadInput),
              HasSubstr("saved without what is not trained"));
}

TEST_F(FrozenBits, EveryPatternOf16BitsComesThrough) {
  const elixir::testing::TemporaryFolder folder;
  int number = 0;
  for (const ComputeType type : {ComputeType::kBf16, ComputeType::kFp16}) {
    for (const uint32_t ranks : {1u, 3u}) {
      for (const shm::Exchange exchange : {shm::Exchange::kHost, shm::Exchange::kCollective}) {
        for (const uint64_t chunk_numel : {uint64_t{4096}, uint64_t{1} << 16, uint64_t{3} << 16}) {
          if (ranks == 1 && exchange == shm::Exchange::kCollective) continue;
          SCOPED_TRACE(::testing::Message()
                       << compute_type_name(type) << ", " << ranks << " ranks, "
                       << shm::exchange_name(exchange) << ", chunks of " << chunk_numel);
          expect_unchanged({type, ranks, exchange, chunk_numel},
                           folder.path("saved" + std::to_string(++number)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace elixir::test
