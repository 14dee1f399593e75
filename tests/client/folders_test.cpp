// Requests for folders through sessions alone, against a real elixird: ranks are threads.

#include "client/session/folders.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "client/session/session.h"
#include "tests/client/verdict.h"
#include "tests/daemon/daemon_process.h"
#include "tests/support/patience.h"
#include "tests/support/run_threads.h"
#include "tests/support/temporary_folder.h"

namespace elixir::test {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kChunkNumel = 1280;
constexpr uint32_t kChunks = 5;

shm::Shape shape_of(uint32_t ranks, ComputeType type = ComputeType::kBf16) {
  return {.type = type,
          .ranks = ranks,
          .n_chunks = kChunks,
          .n_parameters = kChunks,
          .chunk_numel = kChunkNumel};
}

std::vector<shm::ParameterPlace> places() {
  std::vector<shm::ParameterPlace> result;
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    result.push_back({"p" + std::to_string(chunk), chunk, 0, kChunkNumel});
  }
  return result;
}

checkpoints::Details details_of(uint64_t step) {
  checkpoints::Details details;
  for (uint32_t i = 0; i < kChunks; ++i) {
    details.shapes.push_back({static_cast<int64_t>(kChunkNumel)});
  }
  details.manifest.step = step;
  details.manifest.groups = {{0.01, 0.1, {0.9, 0.999, 1e-8}}};
  return details;
}

// Masters and moments of all ranks.
std::vector<float> states_of(const Session& session) {
  const shm::Shape& shape = session.shape();
  std::vector<float> all, values(kChunkNumel);
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    for (uint32_t array = 0; array <= shape.n_moments; ++array) {
      for (uint32_t rank = 0; rank < shape.ranks; ++rank) {
        float* const to = values.data() + shape.shard_begin(rank);
        if (array == 0) session.read_masters(chunk, rank, to);
        if (array > 0) session.read_moment(chunk, rank, array - 1, to);
      }
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

class SessionFolders : public ::testing::Test {
 protected:
  SessionFolders() {
    ::setenv("ELIXIR_RUNTIME_DIR", daemon_.folder().path.c_str(), 1);
    parent_.reset(::open(folder_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  ~SessionFolders() override { ::unsetenv("ELIXIR_RUNTIME_DIR"); }

  std::unique_ptr<Session> attach(uint32_t rank, uint32_t ranks) {
    SessionOptions options;
    options.job = "folders-" + std::to_string(jobs_) + "-" + std::to_string(ranks);
    options.rank = options.local_rank = rank;
    options.local_ranks = ranks;
    options.start_daemon = false;
    options.request_timeout_s = options.ranks_timeout_s = kPatienceS;
    auto session = Session::attach(shape_of(ranks), places(), options);
    EXPECT_TRUE(session.ok()) << session.status().message();
    return session.ok() ? std::move(*session) : nullptr;
  }

  void draw(Session& session) {
    std::vector<float> values(kChunkNumel);
    for (uint32_t chunk = 0; session.rank() == 0 && chunk < kChunks; ++chunk) {
      for (uint64_t i = 0; i < kChunkNumel; ++i) {
        values[i] = std::sin(static_cast<float>(chunk * kChunkNumel + i));
      }
      ASSERT_TRUE(session.load_chunk(chunk, values.data()).ok());
    }
    ASSERT_TRUE(session.await_loaded().ok());
  }

  void step(Session& session, uint32_t number) {
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      ASSERT_TRUE(session.wait_param(chunk, number - 1).ok());
      auto* const slot = reinterpret_cast<uint16_t*>(session.grad_slot(chunk));
      // BF16 between 1 and 2, of either sign.
      for (uint64_t i = 0; i < kChunkNumel; ++i) {
        slot[i] = static_cast<uint16_t>((i * number + session.rank()) % 2 << 15 | 0x3f80 | i % 64);
      }
      session.say_gradient(number, chunk, 0);
      ASSERT_TRUE(session.publish_grad(chunk, {.step = number, .micro_step = 1}).ok());
    }
    ASSERT_TRUE(session.post_step(verdict_on(number)).ok());
  }

  Result<uint32_t> save(Session& session, const std::string& name, uint32_t after_step) {
    return session.save_folder(
        {.parent = parent_.get(),
         .name = name,
         .after_step = after_step,
         .details = session.rank() == 0 ? details_of(after_step) : checkpoints::Details()});
  }

  // One that was taken, and fails so soon that it may be over when the rank looks, was not refused.
  static Status end_of(Session& session, const Result<uint32_t>& number) {
    EXPECT_TRUE(number.ok()) << number.status().message();
    if (!number.ok()) return number.status();
    const Result<bool> ended = session.folder_ended_within(*number, kPatienceS);
    EXPECT_TRUE(ended.ok() && *ended) << ended.status().message();
    const FolderOutcome outcome = session.folder_result(*number);
    EXPECT_FALSE(outcome.refused) << outcome.status.message();
    return outcome.status;
  }

  void expect_saved(Session& session, const Result<uint32_t>& number) {
    ASSERT_TRUE(number.ok()) << number.status().message();
    const Result<bool> ended = session.folder_ended_within(*number, kPatienceS);
    ASSERT_TRUE(ended.ok() && *ended) << ended.status().message();
    const FolderOutcome outcome = session.folder_result(*number);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
    EXPECT_EQ(session.folder_progress(*number).done_bytes, outcome.bytes);
  }

  Status load(Session& session, const std::string& name) {
    if (session.rank() == 0) {
      const UniqueFd opened(::openat(parent_.get(), name.c_str(), O_RDONLY | O_DIRECTORY));
      checkpoints::Details details;
      details.shapes = details_of(0).shapes;
      const Result<uint32_t> number = session.load_folder(
          {.folder = opened.get(), .path = folder_.path(name), .details = details});
      if (!number.ok()) return number.status();
      const Result<bool> ended = session.folder_ended_within(*number, kPatienceS);
      if (!ended.ok()) return ended.status();
      ELIXIR_RETURN_IF_ERROR(session.folder_result(*number).status);
    }
    return session.await_loaded();
  }

  elixir::testing::DaemonProcess daemon_{{"--no-bandwidth-probe"}};
  const TemporaryFolder folder_;
  UniqueFd parent_;
  int jobs_ = 0;
};

// The states after the step that was asked for, though the ranks are steps further by then.
TEST_F(SessionFolders, HaveTheStatesOfTheirStepAndAnyNumberOfRanksReadsThem) {
  constexpr uint32_t kSaved = 3;
  for (const uint32_t from : {1u, 3u}) {
    const std::string name = "from-" + std::to_string(from);
    std::vector<float> saved;
    run_threads(from, [&](uint32_t rank) {
      const auto session = attach(rank, from);
      ASSERT_NO_FATAL_FAILURE(draw(*session));
      for (uint32_t i = 1; i <= kSaved; ++i) ASSERT_NO_FATAL_FAILURE(step(*session, i));
      ASSERT_TRUE(session->wait_finished(kSaved).ok());
      if (rank == 0) saved = states_of(*session);
      const Result<uint32_t> number = save(*session, name, kSaved);
      for (uint32_t i = kSaved + 1; i <= kSaved + 5; ++i) {
        ASSERT_NO_FATAL_FAILURE(step(*session, i));
      }
      expect_saved(*session, number);
      ASSERT_TRUE(session->wait_finished(kSaved + 5).ok());
      if (rank == 0) {
        EXPECT_NE(states_of(*session), saved);
      }
    });
    for (const uint32_t to : {1u, 2u, 4u}) {
      ++jobs_;
      run_threads(to, [&](uint32_t rank) {
        const auto session = attach(rank, to);
        const Status status = load(*session, name);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(states_of(*session), saved) << from << " to " << to;
        step(*session, 1);  // and training goes on
        EXPECT_TRUE(session->wait_finished(1).ok());
      });
    }
  }
}

TEST_F(SessionFolders, ARefusedRequestLeavesTheSessionAsItWas) {
  const auto session = attach(0, 1);
  ASSERT_NO_FATAL_FAILURE(draw(*session));
  std::filesystem::create_directory(folder_.path("taken"));
  for (int i = 0; i < 10; ++i) {  // more than there are results
    EXPECT_EQ(save(*session, "../out", 0).status().code(), Code::kInvalidArgument);
    EXPECT_EQ(end_of(*session, save(*session, "taken", 0)).code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(save(*session, std::string(300, 'a'), 0).status().code(), Code::kInvalidArgument);
  ASSERT_NO_FATAL_FAILURE(step(*session, 1));
  ASSERT_TRUE(session->wait_finished(1).ok());
  expect_saved(*session, save(*session, "good", 1));
  EXPECT_TRUE(std::filesystem::exists(folder_.path("good/elixir.json")));
}

// One rank alone cannot save; what it asked for ends with the next step, and so says who did not.
TEST_F(SessionFolders, ASaveThatOneRankAloneAsksForEndsWithTheNextStep) {
  run_threads(2, [&](uint32_t rank) {
    const auto session = attach(rank, 2);
    ASSERT_NO_FATAL_FAILURE(draw(*session));
    ASSERT_NO_FATAL_FAILURE(step(*session, 1));
    Result<uint32_t> number = Status(Code::kInternal, "not asked");
    if (rank == 0) number = save(*session, "alone", 1);
    ASSERT_NO_FATAL_FAILURE(step(*session, 2));
    ASSERT_TRUE(session->wait_finished(2).ok());
    if (rank != 0) return;
    EXPECT_THAT(end_of(*session, number).message(), HasSubstr("rank 1"));
  });
}

TEST_F(SessionFolders, AWaitForARequestEndsWithElixird) {
  const auto session = attach(0, 1);
  ASSERT_NO_FATAL_FAILURE(draw(*session));
  EXPECT_FALSE(*session->folder_ended_within(1, 0));
  EXPECT_FALSE(*session->folder_ended_within(1, 0.1));
  daemon_.signal(SIGKILL);
  daemon_.wait();
  EXPECT_EQ(session->folder_ended_within(1, kPatienceS).status().code(), Code::kUnavailable);
  EXPECT_EQ(save(*session, "gone", 0).status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace elixir::test
