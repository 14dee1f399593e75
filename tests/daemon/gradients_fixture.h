#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/daemon/daemon_process.h"
#include "tests/daemon/fake_job.h"

namespace elixir::testing {

// One elixird for all tests of a file's suite.
class Gradients : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    daemon_ = new DaemonProcess({"--workers", "2", "--test-slice-numel", "256"});
  }
  static void TearDownTestSuite() {
    delete daemon_;
    daemon_ = nullptr;
  }
  void TearDown() override {
    EXPECT_TRUE(daemon_->running()) << daemon_->log();
    // Where no test loses doorbells, no tick finds what none has rung for.
    if (!loses_doorbells_) {
      EXPECT_EQ(lost_doorbells(), lost_before_);
    }
  }
  void SetUp() override { lost_before_ = lost_doorbells(); }
  static uint64_t lost_doorbells() {
    const std::string status = daemon_->ask_status(), key = "\"lost_doorbells\":";
    const size_t at = status.find(key);  // the daemon's comes first
    return at == std::string::npos ? UINT64_MAX : std::stoull(status.substr(at + key.size()));
  }

  std::unique_ptr<FakeJob> start(FakeJob::Options options) {
    options.folder = daemon_->folder();
    auto job = FakeJob::start(options);
    EXPECT_TRUE(job.ok()) << job.status().message();
    return std::move(*job);
  }
  // All ranks go, in good order, once elixird has heard every doorbell of theirs: goodbyes take
  // another way, and may overtake them.
  static void leave(const std::vector<std::unique_ptr<FakeTrainer>>& ranks) {
    for (const auto& rank : ranks) EXPECT_TRUE(rank->await_ready().ok());
    for (const auto& rank : ranks) rank->detach();
  }
  static void leave(FakeJob& job) { leave(job.ranks()); }
  // The trainer at fault hears `needle`.
  static void expect_fault(FakeJob& job, uint32_t rank, const std::string& needle) {
    expect_fault(job.rank(rank).wait_session_fault(), needle);
  }
  // Of two ranks that contradict each other the one elixird hears last is at fault; which one that
  // is, their two sockets leave open. The other one hears that its peer is lost.
  static void expect_fault_of_either(FakeJob& job, const std::string& needle) {
    const Result<shm::SessionFault> faults[] = {job.rank(0).wait_session_fault(),
                                                job.rank(1).wait_session_fault()};
    ASSERT_TRUE(faults[0].ok() && faults[1].ok());
    const bool first = faults[0]->code == static_cast<uint32_t>(Code::kProtocol);
    expect_fault(faults[first ? 0 : 1], needle);
    EXPECT_EQ(faults[first ? 1 : 0]->code, static_cast<uint32_t>(Code::kPeerLost));
  }
  static void expect_fault(const Result<shm::SessionFault>& fault, const std::string& needle) {
    ASSERT_TRUE(fault.ok()) << fault.status().message();
    EXPECT_EQ(fault->code, static_cast<uint32_t>(Code::kProtocol));
    const std::string text(shm::get_text(fault->text));
    EXPECT_NE(text.find(needle), std::string::npos) << text;
  }
  static void expect_verdict(FakeJob& job, uint32_t step, const optim::Verdict& verdict,
                             uint64_t applied) {
    for (auto& rank : job.ranks()) {
      const shm::StepResult result = rank->step_result(step);
      EXPECT_EQ(result.step, step);
      EXPECT_EQ(result.skipped, verdict.skipped ? 1u : 0u) << step;
      EXPECT_EQ(result.grad_scale, verdict.grad_scale) << step;
      EXPECT_EQ(result.applied, applied) << step;
      if (std::isnan(verdict.grad_norm)) {
        EXPECT_TRUE(std::isnan(result.grad_norm)) << result.grad_norm;
      } else {
        EXPECT_EQ(result.grad_norm, verdict.grad_norm) << step;
      }
    }
  }
  static inline DaemonProcess* daemon_ = nullptr;
  uint64_t lost_before_ = 0;
  bool loses_doorbells_ = false;
};

inline shm::StepRecord clipping(uint32_t step, uint32_t ranks, double clip_norm) {
  shm::StepRecord record = make_record(step, ranks);
  record.clip_norm = clip_norm;
  return record;
}

}  // namespace elixir::testing
