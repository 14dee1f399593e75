// What the tables of other jobs, read beside the event loop, cost the steps of one that trains.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/clock.h"
#include "shm/attach_socket.h"
#include "shm/messages.h"
#include "shm/parameter_table.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/fake_job.h"
#include "tests/support/median.h"

namespace elixir::testing {
namespace {

using test::median;

constexpr uint32_t kTables = 20;
constexpr uint64_t kTableBytes = uint64_t{64} << 20;
constexpr uint64_t kNumel = 4 << 20;  // of the job that trains
constexpr int kRounds = 5;

// Of a large job, with a table that is read to its end and refused there, so that nothing is
// reserved for it.
shm::AttachRequest request_of(uint32_t job) {
  shm::AttachRequest request{};
  shm::set_text(request.job, fmt::format("table-{}", job));
  request.shape.type = ComputeType::kFp32;
  request.shape.ranks = request.position.local_ranks = 1;
  request.shape.n_chunks = request.shape.n_parameters = 64;
  request.shape.chunk_numel = shm::kAlignNumel * 1024;
  request.rules.accumulate = 1;
  request.table = {kTableBytes, /*xxh64=*/1};
  return request;
}

// As many trainers as there are tables, which have all asked.
class Asking {
 public:
  explicit Asking(const DaemonProcess& daemon) : table_(::memfd_create("table", MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(table_.get(), static_cast<off_t>(kTableBytes)), 0);
    const int fds[] = {table_.get()};
    for (uint32_t job = 0; job < kTables; ++job) {
      Result<UniqueFd> socket = shm::connect_attach(daemon.folder().attach_socket());
      EXPECT_TRUE(socket.ok() && shm::send_message(socket->get(), request_of(job), fds).ok());
      sockets_.push_back(std::move(*socket));
    }
  }
  // The last table has been read.
  bool answered() const {
    pollfd last{sockets_.back().get(), POLLIN, 0};
    return ::poll(&last, 1, 0) == 1;
  }
  void expect_all_read() const {
    for (const UniqueFd& socket : sockets_) {
      const auto packet = shm::receive_packet(socket.get(), FakeTrainer::kDeadlineMs);
      ASSERT_TRUE(packet.ok()) << packet.status().message();
      const auto refusal = shm::decode_message<shm::Refusal>(packet->bytes);
      ASSERT_TRUE(refusal.ok());
      const std::string text(shm::get_text(refusal->text));
      EXPECT_NE(text.find("checksum announced"), std::string::npos) << text;
    }
  }

 private:
  const UniqueFd table_;
  std::vector<UniqueFd> sockets_;
};

class Training {
 public:
  explicit Training(const DaemonProcess& daemon) {
    auto started = FakeJob::start(
        {.folder = daemon.folder(), .model = make_model(ComputeType::kFp32, 1, 1, kNumel)});
    EXPECT_TRUE(started.ok()) << started.status().message();
    job_ = std::move(*started);
  }
  double step_seconds() {
    const int64_t begin_ns = monotonic_ns();
    job_->rank(0).write_grads(0, grads_.data(), ++step_);
    job_->post(make_record(step_, 1));
    EXPECT_TRUE(job_->wait_finished(step_).ok());
    return seconds_since(begin_ns);
  }

 private:
  std::unique_ptr<FakeJob> job_;
  const std::vector<float> grads_ = std::vector<float>(kNumel, 1e-3f);
  uint32_t step_ = 0;
};

TEST(Tables, TwentyAtOnceLeaveAnotherJobsStepsWithinAFifthOfTheirTime) {
  const DaemonProcess daemon;
  Training training(daemon);
  ASSERT_GE(shm::most_table_bytes(request_of(0).shape), kTableBytes);
  for (int step = 0; step < 5; ++step) training.step_seconds();
  std::vector<double> alone_s, beside_s, ratios;  // of a step, by round
  for (int round = 0; round < kRounds; ++round) {
    // Means: one long stand counts as many short ones.
    double alone = 0, beside = 0;
    int steps = 0;
    const Asking asking(daemon);
    for (; !asking.answered(); ++steps) beside += training.step_seconds();
    asking.expect_all_read();
    for (int step = 0; step < steps; ++step) alone += training.step_seconds();
    ASSERT_GE(steps, 10) << "read within so few steps: too soon, or steps stood still";
    alone_s.push_back(alone / steps);
    beside_s.push_back(beside / steps);
    ratios.push_back(beside / alone);
  }
  std::printf("a step: %.2f ms alone, %.2f ms beside %u tables, ratio %.3f\n",
              1e3 * median(alone_s), 1e3 * median(beside_s), kTables, median(ratios));
  EXPECT_LT(median(ratios), 1.2);
}

}  // namespace
}  // namespace elixir::testing
