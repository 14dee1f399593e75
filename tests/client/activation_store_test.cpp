// What checkpointed regions send to host memory: values, bytes, order of copies, and regions that
// take another way than forward and backward. Copies happen as late as they may.

#include "client/train/activation_store.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <fmt/ranges.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/region_plan.h"
#include "tests/client/lazy_device.h"
#include "tests/client/region_blocks.h"
#include "tests/support/matchers.h"
#include "tests/support/thrown.h"

namespace elixir::test {
namespace {

constexpr uint64_t kEnough = uint64_t{1} << 30;
constexpr const char* kStreamNames[kStreams] = {"compute", "upload",    "download", "gather",
                                                "reduce",  "keep_down", "keep_up",  "swing0",
                                                "swing1",  "swing2"};

// Writes down what is enqueued, without bytes and addresses.
class WritingDevice final : public LazyDevice {
 public:
  void upload(Stream stream, std::byte* device, const std::byte* host, size_t bytes) override {
    add("upload", stream);
    LazyDevice::upload(stream, device, host, bytes);
  }
  void download(Stream stream, std::byte* host, const std::byte* device, size_t bytes) override {
    add("download", stream);
    LazyDevice::download(stream, host, device, bytes);
  }
  void record(DeviceEvent event, Stream stream) override {
    add(fmt::format("record {}", event.index), stream);
    LazyDevice::record(event, stream);
  }
  void wait(Stream stream, DeviceEvent event) override {
    add(fmt::format("wait {}", event.index), stream);
    LazyDevice::wait(stream, event);
  }
  std::vector<std::string> take() { return std::exchange(calls_, {}); }

 private:
  void add(const std::string& what, Stream stream) {
    calls_.push_back(fmt::format("{}: {}", kStreamNames[static_cast<int>(stream)], what));
  }
  std::vector<std::string> calls_;
};

struct Put {
  at::Tensor values;
  std::weak_ptr<SentTensors> sent;
};

class ActivationStoreTest : public ::testing::Test {
 protected:
  explicit ActivationStoreTest(uint64_t limit_bytes = kEnough)
      : store_(std::make_shared<ActivationStore>(device_, limit_bytes)) {
    at::manual_seed(5);
  }
  ~ActivationStoreTest() override {
    store_->close();
    EXPECT_EQ(device_.violation(), "");
  }

  WritingDevice device_;
  const std::shared_ptr<ActivationStore> store_;
};

using Calls = std::vector<std::string>;

// In forward each parcel is down before the next one leaves. In backward the one before comes while
// the region runs.
TEST_F(ActivationStoreTest, CopiesAreInOrderWithOperators) {
  device_.take();
  std::vector<std::shared_ptr<SentTensors>> sent;
  for (int i = 0; i < 3; ++i) sent.push_back(store_->put({at::full({16}, i)}));
  EXPECT_EQ(
      device_.take(),
      (Calls{"compute: record 0", "keep_down: wait 0", "keep_down: download", "keep_down: record 1",
             "compute: wait 1", "compute: record 0", "keep_down: wait 0", "keep_down: download",
             "keep_down: record 2", "compute: wait 2", "compute: record 0", "keep_down: wait 0",
             "keep_down: download", "keep_down: record 3"}));
  EXPECT_TRUE(at::equal(sent[2]->get()[0], at::full({16}, 2)));
  // It has never left; the second one comes.
  EXPECT_EQ(device_.take(), (Calls{"compute: wait 3", "compute: record 0", "keep_up: wait 0",
                                   "keep_up: upload", "keep_up: record 2"}));
  EXPECT_TRUE(at::equal(sent[1]->get()[0], at::full({16}, 1)));
  EXPECT_EQ(device_.take(), (Calls{"compute: wait 2", "compute: record 0", "keep_up: wait 0",
                                   "keep_up: upload", "keep_up: record 1"}));
  EXPECT_TRUE(at::equal(sent[0]->get()[0], at::full({16}, 0)));
  EXPECT_EQ(device_.take(), (Calls{"compute: wait 1"}));
}

TEST_F(ActivationStoreTest, TensorsComeBackAsTheyWere) {
  std::vector<std::vector<at::Tensor>> values;
  std::vector<std::shared_ptr<SentTensors>> sent;
  for (int i = 0; i < 6; ++i) {
    values.push_back({at::randn({3 + i, 7}), at::randn({5, 4}).to(at::kBFloat16).t(),
                      at::randint(100, {11}), at::randn({1})});
    std::vector<at::Tensor> copies;
    for (const at::Tensor& each : values.back()) copies.push_back(each.clone());
    sent.push_back(store_->put(copies));
  }
  for (size_t i = sent.size(); i-- > 0;) {
    const std::vector<at::Tensor> back = sent[i]->get();
    ASSERT_EQ(back.size(), values[i].size());
    for (size_t k = 0; k < back.size(); ++k) {
      EXPECT_TRUE(at::equal(back[k], values[i][k])) << i << " " << k;
      EXPECT_EQ(back[k].strides(), values[i][k].strides());
      EXPECT_FALSE(back[k].requires_grad());
    }
  }
}

// A copy for each 32 MiB, though slabs are shorter.
TEST_F(ActivationStoreTest, GoInPieces) {
  const auto numel = static_cast<int64_t>(kActivationPieceBytes / 4 * 5 / 2);
  const at::Tensor values = at::randn({numel});
  const auto first = store_->put({values.clone()});
  const auto second = store_->put({at::ones({4})});
  size_t copies = 0;
  for (const std::string& call : device_.take()) copies += call == "keep_down: download" ? 1 : 0;
  EXPECT_EQ(copies, 3 + 1U);
  EXPECT_EQ(store_->traffic().down_bytes, static_cast<uint64_t>(4 * numel + 16));
  EXPECT_EQ(store_->traffic().host_bytes, 5 * kActivationPieceBytes);  // it has doubled
  second->get();
  EXPECT_TRUE(at::equal(first->get()[0], values));
  EXPECT_EQ(store_->traffic().up_bytes, static_cast<uint64_t>(4 * numel));
}

TEST_F(ActivationStoreTest, AtMostOneRegionsTensorsAreOnTheDevice) {
  std::vector<std::shared_ptr<SentTensors>> sent;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> memory;
  const auto alive = [&] {
    int count = 0;
    for (const auto& each : memory) count += each.expired() ? 0 : 1;
    return count;
  };
  for (int i = 0; i < 4; ++i) {
    at::Tensor values = at::full({64}, i);
    memory.emplace_back(values.storage().getWeakStorageImpl());
    sent.push_back(store_->put({values}));
    values.reset();
    EXPECT_EQ(alive(), 1) << i;
  }
  store_->settle();
  EXPECT_EQ(alive(), 0);
  store_->bring_next();
  device_.take();
  sent[3]->get();
  EXPECT_EQ(device_.take().front(), "compute: wait 4");  // it was on its way
}

// retain_graph, and two graphs whose backward passes come in the order of their forward.
TEST_F(ActivationStoreTest, AnyOrderGivesTheValues) {
  for (const std::vector<int>& order :
       {std::vector<int>{0, 1, 2, 3}, {3, 3, 2, 2, 1, 0, 0}, {2, 0, 3, 1}, {1, 3, 1, 3}}) {
    std::vector<std::shared_ptr<SentTensors>> sent;
    for (int i = 0; i < 4; ++i) sent.push_back(store_->put({at::full({33}, i)}));
    for (const int i : order) {
      EXPECT_TRUE(at::equal(sent[static_cast<size_t>(i)]->get()[0], at::full({33}, i))) << i;
      // What the operators write in between is not another's memory.
      at::full({33}, 1e9).add_(1);
    }
  }
}

TEST_F(ActivationStoreTest, WhatEndsGivesItsMemoryBack) {
  uint64_t host_bytes = 0;
  for (int pass = 0; pass < 20; ++pass) {
    std::vector<std::shared_ptr<SentTensors>> sent;
    for (int i = 0; i < 5; ++i) sent.push_back(store_->put({at::full({100}, i)}));
    if (pass % 3 == 0) sent[4]->get();            // and the fourth is on its way
    if (pass % 3 == 1) sent.erase(sent.begin());  // an exception in forward
    if (pass % 3 == 2) store_->settle();
    if (pass == 1) host_bytes = store_->traffic().host_bytes;
    if (pass > 1) EXPECT_EQ(store_->traffic().host_bytes, host_bytes) << pass;
  }
}

class LimitedStore : public ActivationStoreTest {
 protected:
  LimitedStore() : ActivationStoreTest(3 * kActivationSlabBytes) {}
};

TEST_F(LimitedStore, BeyondTheLimitTheyStayWhereTheyAre) {
  std::vector<std::shared_ptr<SentTensors>> sent;
  for (int i = 0; i < 3; ++i) sent.push_back(store_->put({at::full({1000}, 1.0F * i)}));
  ASSERT_NE(sent[2], nullptr);
  EXPECT_EQ(store_->put({at::ones({1000})}), nullptr);
  EXPECT_EQ(store_->put({at::ones({4'000'000})}), nullptr);
  sent.pop_back();
  EXPECT_NE(store_->put({at::ones({1000})}), nullptr);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(at::equal(sent[i]->get()[0], at::full({1000}, static_cast<float>(i))));
  }
}

TEST_F(ActivationStoreTest, TakesWhatIsDenseAndOnItsDevice) {
  EXPECT_TRUE(store_->takes(at::ones({3, 4})));
  EXPECT_TRUE(store_->takes(at::ones({3, 4}).t()));
  EXPECT_FALSE(store_->takes(at::ones({3, 4}).select(1, 0)));
  EXPECT_FALSE(store_->takes(at::ones({3, 4}).slice(0, 1)));  // behind its memory's begin
  EXPECT_FALSE(store_->takes(at::ones({1, 4}).expand({3, 4})));
  EXPECT_FALSE(store_->takes(at::empty({0})));
  EXPECT_FALSE(store_->takes(at::Tensor()));
  EXPECT_FALSE(store_->takes(at::ones({2}, at::kMeta)));
  EXPECT_FALSE(store_->takes(at::eye(3).to_sparse()));
}

TEST_F(ActivationStoreTest, AfterTheOptimizersEndThereIsNoBackward) {
  const auto away = store_->put({at::ones({8})});
  const auto leaving = store_->put({at::ones({8})});
  store_->close();
  for (const auto& each : {away, leaving}) {
    expect_refused(thrown([&] { each->get(); }), Code::kInvalidArgument,
                   {"optimizer", "has ended"});
  }
  EXPECT_EQ(store_->put({at::ones({8})}), nullptr);
  store_->settle();
  store_->bring_next();
}

// ---- regions ----

class SentRegions : public RegionTest {
 protected:
  SentRegions() {
    set_region_plan({.regions = 4, .host_products = 4, .host_boundaries = 4});
    set_activation_host(store_);
  }
  ~SentRegions() override {
    set_activation_host(nullptr);
    set_region_plan({});
    store_->close();
    EXPECT_EQ(device_.violation(), "");
  }

  LazyDevice device_;
  const std::shared_ptr<ActivationStore> store_ =
      std::make_shared<ActivationStore>(device_, kEnough);
};

TEST_F(SentRegions, HaveTheBitsOfThoseThatAreNot) {
  for (const RegionPlan& plan : {RegionPlan{.regions = 4, .host_products = 4, .host_boundaries = 4},
                                 RegionPlan{.regions = 4, .host_products = 3},
                                 RegionPlan{.regions = 4, .host_boundaries = 4},
                                 RegionPlan{.regions = 4, .keep_all = 1, .host_boundaries = 3},
                                 RegionPlan{.regions = 4, .keep_products = 2, .host_products = 2},
                                 RegionPlan{.regions = 2, .host_products = 2, .host_boundaries = 2},
                                 RegionPlan{.regions = kMostRegions,
                                 .host_products = kMostRegions,
                                 .host_boundaries = kMostRegions}}) {
    SCOPED_TRACE(fmt::format("{} regions, {} products, {} boundaries", plan.regions,
                             plan.host_products, plan.host_boundaries));
    set_region_plan(plan);
    const uint64_t before = store_->traffic().up_bytes;
    bits_are_equal(GptBlock(), 4);
    bits_are_equal(LlamaBlock(), 4);
    EXPECT_GT(store_->traffic().up_bytes, before);
  }
}

// Of four regions the last keeps what it has; the input of the first one is a leaf, and stays.
TEST_F(SentRegions, MoveTheBytesOfTheirProductsAndInputs) {
  const GptBlock gpt;
  step(gpt, 4);
  step(gpt, 4);
  const HostParcels::Traffic before = store_->traffic();
  step(gpt, 4);
  const HostParcels::Traffic after = store_->traffic();
  const uint64_t row = 6 * sizeof(float), products = row * (24 + 8 + 32), input = row * 8;
  EXPECT_EQ(after.down_bytes - before.down_bytes, 3 * products + 2 * input);
  EXPECT_EQ(after.up_bytes - before.up_bytes, 3 * products + 2 * input);
  EXPECT_EQ(after.host_bytes, before.host_bytes);
}

TEST_F(SentRegions, MayHaveTwoBackwardPasses) {
  const GptBlock gpt;
  const auto run = [&](bool sends) {
    set_activation_host(sends ? store_ : nullptr);
    at::manual_seed(3);
    at::Tensor y = input().requires_grad_();
    const Function body = [&gpt](const at::Tensor& in) { return gpt(in); };
    for (int i = 0; i < 4; ++i) y = checkpoint(body, y);
    const at::Tensor loss = y.square().sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    return take_gradients(gpt);
  };
  for (int i = 0; i < 3; ++i) expect_equal(run(true), run(false));
}

TEST_F(SentRegions, GraphsMayBeDroppedAndInterleaved) {
  const GptBlock gpt;
  const Function body = [&gpt](const at::Tensor& in) { return gpt(in); };
  const auto forward = [&](uint64_t seed) {
    at::manual_seed(seed);
    at::Tensor y = input().requires_grad_();
    for (int i = 0; i < 4; ++i) y = checkpoint(body, y);
    return y.square().sum();
  };
  const auto run = [&](bool sends) {
    set_activation_host(sends ? store_ : nullptr);
    forward(1);  // no backward
    const at::Tensor first = forward(2), second = forward(3);
    {
      const at::NoGradGuard evaluation;
      forward(4);
    }
    first.backward();
    second.backward();
    return take_gradients(gpt);
  };
  for (int i = 0; i < 3; ++i) expect_equal(run(true), run(false));
}

TEST_F(SentRegions, AfterAnErrorInForwardAllIsWhole) {
  const GptBlock gpt;
  const std::vector<at::Tensor> expected = [&] {
    set_activation_host(nullptr);
    step(gpt, 4);
    set_activation_host(store_);
    return take_gradients(gpt);
  }();
  for (int failing = 0; failing < 4; ++failing) {
    at::Tensor y = input().requires_grad_();
    int number = 0;
    const Function body = [&](const at::Tensor& in) {
      if (number++ == failing) throw std::runtime_error("of the program");
      return gpt(in);
    };
    EXPECT_THROW(for (int i = 0; i < 4; ++i) y = checkpoint(body, y), std::runtime_error);
    y.reset();
    step(gpt, 4);
    expect_equal(take_gradients(gpt), expected);
  }
}

TEST_F(SentRegions, HaveTheirBitsUnderDropoutAndAutocast) {
  struct Dropped : GptBlock {
    at::Tensor operator()(const at::Tensor& x) const {
      return x + at::dropout(GptBlock::operator()(x), 0.25, true);
    }
  };
  bits_are_equal(Dropped(), 4);
  const uint64_t before = store_->traffic().up_bytes;
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  bits_are_equal(Dropped(), 4);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_GT(store_->traffic().up_bytes, before);
}

// A second run that ends early, as by a lack of memory, has taken some products. The next one takes
// none of them for others of the same shape.
TEST_F(SentRegions, ASecondRunThatFailsMayBeTriedAgain) {
  struct Failing {
    std::vector<at::Tensor> weights{weight(8, 8), weight(8, 8), weight(8, 8)};
    mutable int fails_at = -1;  // runs from now on
    at::Tensor operator()(const at::Tensor& x) const {
      const at::Tensor q = x.mm(weights[0]);
      if (fails_at >= 0 && fails_at-- == 0) throw std::runtime_error("no memory");
      return x + (q * x.mm(weights[1])).tanh() * x.mm(weights[2]).tanh();
    }
  };
  const Failing block;
  const Function body = [&block](const at::Tensor& in) { return block(in); };
  const auto run = [&](bool fails) {
    at::manual_seed(3);
    at::Tensor y = input().requires_grad_();
    for (int i = 0; i < 4; ++i) y = checkpoint(body, y);
    const at::Tensor loss = y.square().sum();
    block.fails_at = fails ? 1 : -1;  // in the second region of backward
    if (fails) {
      EXPECT_THROW(loss.backward({}, /*retain_graph=*/true), std::exception);
      take_gradients(block);
      block.fails_at = -1;
    }
    loss.backward();
    return take_gradients(block);
  };
  for (const RegionPlan& plan :
       {RegionPlan{.regions = 4, .host_products = 4, .host_boundaries = 4},
        RegionPlan{.regions = 4, .keep_products = 4}, RegionPlan{.regions = 4}}) {
    set_region_plan(plan);
    const std::vector<at::Tensor> expected = run(false);
    run(false);
    // The regions before the failing one have run, so their products are computed again.
    expect_equal(run(true), expected);
    expect_equal(run(false), expected);
  }
}

// It would take memory on the device anyway.
TEST_F(SentRegions, AnInputOfSeveralRegionsGoesOnce) {
  set_region_plan({.regions = 4, .host_boundaries = 4});
  const GptBlock gpt;
  const TensorsFunction body = [&gpt](const std::vector<at::Tensor>& in) {
    return std::vector<at::Tensor>{gpt(in[0]) + in[1]};
  };
  const at::Tensor memory = input().requires_grad_() * 2;
  at::Tensor y = input().requires_grad_();
  const uint64_t before = store_->traffic().down_bytes;
  for (int i = 0; i < 4; ++i) y = checkpoint(body, {y, memory})[0];
  // `memory` with the first region, and what comes out of it and of the second one.
  EXPECT_EQ(store_->traffic().down_bytes - before, 3 * 6 * 8 * sizeof(float));
  y.sum().backward();
}

// As torch does it for what is saved for backward.
TEST_F(SentRegions, AnInputThatIsWrittenLaterIsAnError) {
  const GptBlock gpt;
  const Function body = [&gpt](const at::Tensor& in) { return gpt(in); };
  at::Tensor y = checkpoint(body, input().requires_grad_());
  const at::Tensor kept = y;
  y = checkpoint(body, checkpoint(body, y));
  {
    const at::NoGradGuard none;
    kept.add_(1);
  }
  expect_thrown(Code::kInvalidArgument, {"modified by an inplace operation", "checkpoint()"},
                [&] { y.square().sum().backward(); });
}

// A product that the region writes is computed again, wherever the others lie.
TEST_F(SentRegions, AProductThatTheRegionWritesIsNotSent) {
  struct InPlace {
    std::vector<at::Tensor> weights{weight(8, 16), weight(16, 8)};
    at::Tensor operator()(const at::Tensor& x) const {
      return x + x.mm(weights[0]).relu_().mm(weights[1]).tanh();
    }
  };
  const InPlace block;
  bits_are_equal(block, 4);
  const uint64_t before = store_->traffic().down_bytes;
  step(block, 4);
  // The second product alone, and the inputs of two regions.
  EXPECT_EQ(store_->traffic().down_bytes - before, 6 * sizeof(float) * (3 * 8 + 2 * 8));
}

// A result that somebody has written to since is not what the first run computed.
TEST_F(SentRegions, AProductThatTheProgramWritesLaterIsComputedAgain) {
  struct Leaking : GptBlock {
    mutable at::Tensor leaked;
    at::Tensor operator()(const at::Tensor& x) const {
      const at::Tensor product = x.mm(weights[1]);
      leaked = product.detach();
      return x + at::gelu(product).mm(weights[1]);
    }
  };
  const Leaking block;
  const Function body = [&block](const at::Tensor& in) { return block(in); };
  const auto run = [&](bool writes) {
    at::manual_seed(3);
    at::Tensor y = input().requires_grad_();
    for (int i = 0; i < 4; ++i) {
      y = checkpoint(body, y);
      if (writes) block.leaked.zero_();
    }
    y.square().sum().backward();
    return take_gradients(block);
  };
  run(false);
  run(false);
  expect_equal(run(true), run(false));
}

TEST_F(SentRegions, OthersBetweenThemAreLeftAlone) {
  // Nested regions, more of them than the plan has, and parameters as inputs.
  const GptBlock gpt;
  struct Outer {
    const GptBlock& gpt;
    const std::vector<at::Tensor>& weights = gpt.weights;
    at::Tensor operator()(const at::Tensor& x) const {
      const Function inner = [this](const at::Tensor& in) { return gpt(in); };
      return x + checkpoint(inner, at::tanh(x));
    }
  };
  bits_are_equal(Outer{gpt}, 7);
}

}  // namespace
}  // namespace elixir::test
