// What the probe measures, against plain loops of the same run; the emulated link, against what it
// was told to emulate.

#include "client/probe/probe.h"

#include <ATen/Parallel.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "client/device/host_device.h"
#include "client/probe/cpu_rates.h"
#include "client/probe/device_rates.h"
#include "client/probe/inplace.h"
#include "client/probe/link_traffic.h"
#include "client/probe/links.h"
#include "tests/support/matchers.h"

namespace elixir::probe {
namespace {

// Other programs take their share of a machine between one measurement and the next.
auto about(double plain) { return AllOf(Ge(plain / 4), Le(plain * 4)); }

// ---- the line through the matrix products ----

TEST(MatrixFit, FindsTheCurveThatMadeThePoints) {
  std::vector<TimedProduct> products;
  for (const double tokens : {64.0, 512.0, 4096.0}) {
    products.push_back({tokens, 185e12 * tokens / (tokens + 2048)});
  }
  const MatrixRate rate = fit_matrix_rate(products);
  EXPECT_NEAR(rate.tflops, 185, 1e-6);
  EXPECT_NEAR(rate.half_tokens, 2048, 1e-5);
  const MatrixRate of_two = fit_matrix_rate(std::span(products).first(2));
  EXPECT_NEAR(of_two.half_tokens, 2048, 1e-5);
}

TEST(MatrixFit, ErrorsOfAPercentStaySmall) {
  std::vector<TimedProduct> products;
  double error = 0.01;
  for (const double tokens : {512.0, 2048.0, 8192.0}) {
    products.push_back({tokens, (1 + error) * 185e12 * tokens / (tokens + 2048)});
    error = -error;
  }
  const MatrixRate rate = fit_matrix_rate(products);
  EXPECT_NEAR(rate.tflops, 185, 0.05 * 185);
  EXPECT_NEAR(rate.half_tokens, 2048, 0.1 * 2048);
}

TEST(MatrixFit, ARateThatDoesNotFallWithFewerTokensIsFlat) {
  for (const double at_64 : {1e12, 1.2e12}) {
    const TimedProduct products[] = {{64, at_64}, {1024, 1e12}};
    const MatrixRate rate = fit_matrix_rate(products);
    EXPECT_DOUBLE_EQ(rate.tflops, at_64 * 1e-12);
    EXPECT_EQ(rate.half_tokens, 0);
  }
  // Growing with its square has no limit: what was seen.
  const TimedProduct steep[] = {{64, 1e12}, {128, 4e12}};
  EXPECT_DOUBLE_EQ(fit_matrix_rate(steep).tflops, 4);
}

// ---- memory and elixird's update ----

TEST(CpuRates, AreThoseOfAPlainLoop) {
  const CpuRates rates =
      must(measure_cpu({.trainers = {1, 2, 4}, .numel = uint64_t{8} << 20, .rounds = 5}));
  std::vector<uint64_t> words(size_t{16} << 20);
  double plain = 0;
  for (int round = 0; round < 3; ++round) {
    const int64_t begin_ns = monotonic_ns();
    inplace_loops()[0].run(words.data(), words.size(), 0);
    const double bytes = 2 * 8 * static_cast<double>(words.size());
    plain = std::max(plain, 1e-9 * bytes / seconds_since(begin_ns));
  }
  // One thread against all of them, of which there are few where tests run.
  EXPECT_GE(rates.dram_gb_s, plain / 1.5);

  ASSERT_EQ(rates.update_gparam_s.size(), 3u);
  for (const double rate : rates.update_gparam_s) EXPECT_GT(rate, 0);
  // BF16: one gradient read; parameter, low half and both moments read and written.
  EXPECT_LE(rates.update_gparam_s[0] * (2 + 2 * 12), 2 * rates.dram_gb_s);
  EXPECT_GE(rates.update_gparam_s[0] * (2 + 2 * 12), rates.dram_gb_s / 4);
  // Four gradients are more to read than one.
  EXPECT_LE(rates.update_gparam_s[2], 1.3 * rates.update_gparam_s[0]);
}

// ---- links ----

double memcpy_gb_s() {
  std::vector<std::byte> from(size_t{64} << 20), to(from.size());
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const int64_t begin_ns = monotonic_ns();
    std::memcpy(to.data(), from.data(), from.size());
    best = std::max(best, 1e-9 * static_cast<double>(from.size()) / seconds_since(begin_ns));
  }
  return best;
}

// The median of a few: others may use the processors.
LinkRates measure_often(const HostLinksOptions& links) {
  std::vector<LinkRates> all(5);
  for (LinkRates& rates : all) rates = measure_host_links(links);
  const auto median = [&all](double LinkRates::*rate) {
    std::nth_element(all.begin(), all.begin() + 2, all.end(),
                     [&](const LinkRates& a, const LinkRates& b) { return a.*rate < b.*rate; });
    return all[2].*rate;
  };
  return {median(&LinkRates::h2d_gb_s), median(&LinkRates::d2h_gb_s),
          median(&LinkRates::both_gb_s)};
}

TEST(HostLinks, WithoutALinkAreMemoryCopies) {
  const LinkRates rates = measure_often({});
  const double plain_gb_s = memcpy_gb_s();
  EXPECT_THAT(rates.h2d_gb_s, about(plain_gb_s));
  EXPECT_THAT(rates.d2h_gb_s, about(plain_gb_s));
  EXPECT_LE(rates.both_gb_s, 1.3 * (rates.h2d_gb_s + rates.d2h_gb_s));
  EXPECT_GE(rates.both_gb_s, 0.4 * std::min(rates.h2d_gb_s, rates.d2h_gb_s));
}

constexpr double kTolerance = 0.15;

void expect_played(const HostLink& link, uint32_t devices) {
  const LinkRates rates = measure_often({.link = link, .devices = devices});
  const double n = devices;
  EXPECT_NEAR(rates.h2d_gb_s, n * link.h2d_gb_s, kTolerance * n * link.h2d_gb_s);
  EXPECT_NEAR(rates.d2h_gb_s, n * link.d2h_gb_s, kTolerance * n * link.d2h_gb_s);
  const double sum = link.h2d_gb_s + link.d2h_gb_s;
  const double both = n * (link.joint_gb_s == 0 ? sum : std::min(sum, link.joint_gb_s));
  EXPECT_NEAR(rates.both_gb_s, both, kTolerance * both);
  EXPECT_LE(rates.both_gb_s, (1 + kTolerance) * (rates.h2d_gb_s + rates.d2h_gb_s));
}

// Far below what memory copies reach, on a machine that others use too.
TEST(HostLinks, APlayedLinkIsWhatIsMeasured) {
  expect_played({.h2d_gb_s = 0.8, .d2h_gb_s = 0.8}, 1);
  expect_played({.h2d_gb_s = 0.8, .d2h_gb_s = 0.4, .joint_gb_s = 0.9}, 1);
  expect_played({.h2d_gb_s = 0.2, .d2h_gb_s = 0.6, .joint_gb_s = 0.6}, 1);
}

TEST(HostLinks, OfSeveralDevicesAreAddedUp) {
  expect_played({.h2d_gb_s = 0.3, .d2h_gb_s = 0.2, .joint_gb_s = 0.4}, 3);
}

// ---- copies without a pause ----

TEST(LinkTraffic, CopiesBothWaysUntilItIsStopped) {
  HostDevice device;
  const uint64_t up_bytes = device.h2d_bytes(), down_bytes = device.d2h_bytes();
  LinkTraffic traffic(device, 1 << 20);
  while (device.h2d_bytes() == up_bytes || device.d2h_bytes() == down_bytes) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(traffic.stop().ok());
  const uint64_t copied_bytes = device.h2d_bytes();
  EXPECT_NEAR(static_cast<double>(copied_bytes), static_cast<double>(device.d2h_bytes()), 1 << 20);
  EXPECT_EQ(device.h2d_bytes(), copied_bytes);
}

// ---- GPUs, which the fake library has ----

class GpuLinksTest : public ::testing::Test {
 protected:
  ~GpuLinksTest() override { ::unsetenv("ELIXIR_TEST_PROBE_ANSWER"); }
  Result<GpuLinks> ask(const std::string& answer, uint32_t gpus = 0) {
    ::setenv("ELIXIR_TEST_PROBE_ANSWER", answer.c_str(), 1);
    return measure_gpu_links(library_, gpus, 1 << 20);
  }
  static std::string gpu(int memory_bytes, const std::string& failure = "",
                         const std::string& pinning_error = "") {
    return fmt::format(R"({{"name": "Fake {0}", "memory_bytes": {0}, "error": "{1}",
        "pinning_error": "{2}", "h2d_gb_s": 25.5, "d2h_gb_s": 26, "both_gb_s": 40.25}})",
                       memory_bytes, failure, pinning_error);
  }
  static std::string with(const std::string& gpus, const std::string& failure = "") {
    return fmt::format(R"({{"error": "{}", "gpus": [{}]}})", failure, gpus);
  }
  LibrarySearch library_{.file_name = "libelixir_nowhere.so",
                         .variable = "",
                         .build_path = FAKE_PROBE_LIBRARY,
                         .remedy = "build it"};
};

TEST_F(GpuLinksTest, AreAddedUp) {
  const std::string two = with(gpu(9000) + "," + gpu(8000));
  const GpuLinks links = must(ask(two));
  EXPECT_EQ(links.gpus, 2u);
  EXPECT_EQ(links.name, "Fake 9000");
  EXPECT_EQ(links.memory_bytes, 8000u);
  EXPECT_DOUBLE_EQ(links.rates.h2d_gb_s, 51);
  EXPECT_DOUBLE_EQ(links.rates.d2h_gb_s, 52);
  EXPECT_DOUBLE_EQ(links.rates.both_gb_s, 80.5);
  const GpuLinks first = must(ask(two, 1));
  EXPECT_EQ(first.memory_bytes, 9000u);
  EXPECT_DOUBLE_EQ(first.rates.both_gb_s, 40.25);
}

TEST_F(GpuLinksTest, MemoryThatCannotBePageLockedOnOneOfThemIsKnown) {
  EXPECT_EQ(ask(with(gpu(9) + "," + gpu(8)))->pinning_error, "");
  EXPECT_EQ(ask(with(gpu(9) + "," + gpu(8, "", "refused")))->pinning_error, "refused");
}

TEST_F(GpuLinksTest, WhatCannotBeMeasuredIsSaid) {
  Status status = ask(with("", "no driver; install one")).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(status.message(), "no driver; install one");
  EXPECT_THAT(ask(with(gpu(9) + "," + gpu(9, "busy"))).status().message(), "GPU 1: busy");
  EXPECT_TRUE(ask(with(gpu(9) + "," + gpu(9, "busy")), 1).ok());
  EXPECT_THAT(ask(with(gpu(9)), 2).status().message(), HasSubstr("2 GPUs"));
  EXPECT_THAT(ask(with("")).status().message(), HasSubstr("0 show"));
  for (const char* const nonsense : {"", "[]", "{}", R"({"error": "", "gpus": [3]})"}) {
    EXPECT_EQ(ask(nonsense).status().code(), Code::kVersionMismatch) << nonsense;
  }
  library_.build_path = "/nowhere/libelixir_cuda.so";
  EXPECT_EQ(ask("").status().code(), Code::kUnavailable);
}

// ---- all of it ----

TEST(Probe, GivesAMachineThatCanBePlannedFor) {
  std::vector<std::string> told;
  const Result<planner::ProbedMachine> probed = probe(
      {.device = ProbedDevice::kCpu, .quick = true, .progress = [&told](const std::string& what) {
         told.push_back(what);
       }});
  ASSERT_TRUE(probed.ok()) << probed.status().message();
  const planner::Machine& machine = probed->machine;
  EXPECT_TRUE(planner::check_machine(machine).ok());
  EXPECT_EQ(machine.gpus, 1u);
  EXPECT_FALSE(machine.name.empty());
  EXPECT_EQ(machine.probed, "");  // whoever has a clock adds it
  EXPECT_EQ(machine.g2g_gb_s, 0);
  EXPECT_EQ(machine.copies_hidden, std::nullopt);
  EXPECT_EQ(probed->device, "cpu");
  EXPECT_THAT(probed->notes, Contains(HasSubstr("no GPU was used")));
  EXPECT_LE(machine.joint_gb_s, 1.4 * (machine.h2d_gb_s + machine.d2h_gb_s));
  // Sums and copies pass through the memory that is read and written in place, small tensors apart.
  EXPECT_THAT(machine.gpu_memory_gb_s, about(machine.dram_gb_s));
  EXPECT_GT(machine.gpu_launch_us, 0.05);
  EXPECT_LT(machine.gpu_launch_us, 1e3);
  ASSERT_EQ(machine.gpu_attention_tflops.size(), 2u);
  for (const planner::AttentionRate& rate : machine.gpu_attention_tflops) {
    EXPECT_GT(rate.forward_tflops, 0);
    EXPECT_GT(rate.backward_tflops, 0);
    EXPECT_LE(rate.forward_tflops, 4 * machine.gpu_tflops) << rate.head;
    EXPECT_LE(rate.backward_tflops, 4 * machine.gpu_tflops) << rate.head;
  }
  EXPECT_EQ(machine.cpu_update_beside_copies_gparam_s, 0);  // of GPUs alone
  // The device's update is the same code on one thread.
  EXPECT_THAT(machine.gpu_update_gparam_s, Le(3 * machine.cpu_update_gparam_s));
  EXPECT_GE(told.size(), 3u);
}

TEST(Probe, OfSeveralTrainers) {
  const int threads = at::get_num_threads();
  const HostLink link{.h2d_gb_s = 0.3, .d2h_gb_s = 0.3, .joint_gb_s = 0.4};
  ProbeOptions options{.link = link, .gpus = 2, .quick = true};
  Result<planner::ProbedMachine> probed = probe(options);
  ASSERT_TRUE(probed.ok()) << probed.status().message();
  const planner::Machine& machine = probed->machine;
  EXPECT_EQ(machine.gpus, 2u);
  EXPECT_NEAR(machine.h2d_gb_s, 0.6, kTolerance * 0.6);
  EXPECT_NEAR(machine.d2h_gb_s, 0.6, kTolerance * 0.6);
  EXPECT_NEAR(machine.joint_gb_s, 0.8, kTolerance * 0.8);
  EXPECT_DOUBLE_EQ(machine.g2g_gb_s, machine.joint_gb_s / 2);
  EXPECT_THAT(probed->notes, AllOf(Contains(HasSubstr("link was emulated")),
                                   Contains(HasSubstr("collectives were not measured"))));
  EXPECT_EQ(at::get_num_threads(), threads);

  options.g2g_gb_s = 200;
  probed = probe(options);
  ASSERT_TRUE(probed.ok()) << probed.status().message();
  EXPECT_EQ(probed->machine.g2g_gb_s, 200);
  EXPECT_THAT(probed->notes, Contains(HasSubstr("but given")));
}

TEST(Probe, RefusesWhatItCannotDo) {
  EXPECT_EQ(probe({.gpus = 65}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(probe({.g2g_gb_s = -1}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(probe({.device = ProbedDevice::kCuda, .link = HostLink{1, 1}}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(probe({.device = ProbedDevice::kCpu, .link = HostLink{1, -1}}).status().code(),
            Code::kInvalidArgument);
  const LibrarySearch nowhere{
      .file_name = "libelixir_nowhere.so", .build_path = "", .remedy = "build it"};
  EXPECT_EQ(probe_machine({.device = ProbedDevice::kCuda, .cuda_library = nowhere}).status().code(),
            Code::kUnavailable);
}

}  // namespace
}  // namespace elixir::probe
