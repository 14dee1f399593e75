// What a trainer can do wrong, and that only its own job pays for it.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <thread>

#include "base/clock.h"
#include "shm/futex.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/fake_job.h"

namespace elixir::testing::faults {
namespace {

constexpr uint64_t kChunkNumel = 128 * 11;

std::string text_of(const shm::SessionFault& fault) {
  return std::string(shm::get_text(fault.text));
}

// A bystander trains through every test; at the end it must have noticed nothing.
class Faults : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { daemon_ = new DaemonProcess({"--workers", "2"}); }
  static void TearDownTestSuite() {
    delete daemon_;
    daemon_ = nullptr;
  }

  void SetUp() override {
    bystander_ = start("bystander", 2);
    ASSERT_TRUE(bystander_->step(1).ok());
  }
  void TearDown() override {
    ASSERT_TRUE(daemon_->running()) << daemon_->log();
    const Status status = bystander_->step(2);
    EXPECT_TRUE(status.ok()) << status.message();
    Reference reference(bystander_->model());
    for (uint32_t step = 1; step <= 2; ++step) reference.step(make_record(step, 2));
    EXPECT_TRUE(bystander_->compare(reference).ok());
    bystander_->detach();
  }

  std::unique_ptr<FakeJob> start(const std::string& name, uint32_t ranks) {
    auto job = FakeJob::start({.folder = daemon_->folder(),
                               .name = name,
                               .model = make_model(ComputeType::kFp32, ranks, 2, kChunkNumel)});
    EXPECT_TRUE(job.ok()) << job.status().message();
    return std::move(*job);
  }

  // Rank `culprit` hears `code`; the others that they lost it, in the message and in their header.
  void expect_ended(FakeJob& job, uint32_t culprit, Code code, const std::string& needle) {
    for (uint32_t rank = 0; rank < job.ranks().size(); ++rank) {
      const Result<shm::SessionFault> fault = job.rank(rank).wait_session_fault();
      ASSERT_TRUE(fault.ok()) << "rank " << rank << ": " << fault.status().message();
      const Code expected = rank == culprit ? code : Code::kPeerLost;
      EXPECT_EQ(fault->code, static_cast<uint32_t>(expected)) << text_of(*fault);
      EXPECT_EQ(fault->rank, culprit);
      EXPECT_NE(text_of(*fault).find(needle), std::string::npos) << text_of(*fault);
      EXPECT_EQ(job.rank(rank).header().fault.load(), static_cast<uint32_t>(expected));
      EXPECT_EQ(job.rank(rank).header().fault_rank.load(), culprit);
      EXPECT_TRUE(job.rank(rank).wait_end_of_file().ok());
    }
  }

  static DaemonProcess* daemon_;
  std::unique_ptr<FakeJob> bystander_;
};
DaemonProcess* Faults::daemon_ = nullptr;

TEST_F(Faults, ADeadRankIsNamedToTheOthersAndTheJobCanStartAgain) {
  for (int round = 0; round < 2; ++round) {
    auto job = start("mortal", 3);
    ASSERT_TRUE(job->step(1).ok());
    job->rank(1).die();
    for (const uint32_t rank : {0u, 2u}) {
      const Result<shm::SessionFault> fault = job->rank(rank).wait_session_fault();
      ASSERT_TRUE(fault.ok()) << fault.status().message();
      EXPECT_EQ(fault->code, static_cast<uint32_t>(Code::kPeerLost));
      EXPECT_EQ(fault->rank, 1u);
      const std::string name = fmt::format("rank 1 (pid {})", ::getpid());
      EXPECT_NE(text_of(*fault).find(name), std::string::npos) << text_of(*fault);
      EXPECT_EQ(job->rank(rank).header().fault_rank.load(), 1u);
    }
  }
}

// A step is a commit: all have posted, so it happens, though the doorbells were never rung.
TEST_F(Faults, AStepThatAllHavePostedIsFinishedBeforeTheFault) {
  auto job = start("committed", 2);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    job->write_grads(rank, 1);
    job->rank(rank).post_silently(make_record(1, 2));
  }
  job->rank(1).die();
  ASSERT_TRUE(job->rank(0).wait_session_fault().ok());
  EXPECT_EQ(job->rank(0).header().finished_step.load(), 1u);
  Reference reference(job->model());
  reference.step(make_record(1, 2));
  EXPECT_TRUE(job->compare(reference).ok());
}

TEST_F(Faults, AStepThatOneHasNotPostedDoesNotHappen) {
  auto job = start("uncommitted", 2);
  job->write_grads(0, 1);
  job->rank(0).post(make_record(1, 2));
  job->rank(1).die();
  ASSERT_TRUE(job->rank(0).wait_session_fault().ok());
  EXPECT_EQ(job->rank(0).header().committed_step.load(), 0u);
  EXPECT_TRUE(job->compare(Reference(job->model())).ok());
}

TEST_F(Faults, UndecodableMessagesEndTheirSession) {
  shm::AwaitReady good{};
  shm::seal_message(good, 1);
  const auto spoiled = [&](const std::function<void(shm::AwaitReady&)>& spoil) {
    shm::AwaitReady message = good;
    spoil(message);
    std::vector<std::byte> bytes(sizeof message);
    std::memcpy(bytes.data(), &message, sizeof message);
    return bytes;
  };
  std::vector<std::byte> truncated = spoiled([](auto&) {});
  truncated.resize(sizeof good - 1);
  std::vector<std::byte> tiny(3);
  const struct {
    const char* what;
    std::vector<std::byte> bytes;
    Code code;
    const char* text;
  } cases[] = {
      {"size", truncated, Code::kProtocol, "bytes"},
      {"tiny", tiny, Code::kProtocol, "bytes"},
      {"empty", {}, Code::kProtocol, "bytes"},
      {"magic", spoiled([](auto& m) { m.header.magic ^= 1; }), Code::kProtocol, "magic"},
      {"version", spoiled([](auto& m) { ++m.header.version; }), Code::kVersionMismatch, "version"},
      {"checksum", spoiled([](auto& m) { ++m.header.request_id; }), Code::kProtocol, "checksum"},
      {"type", spoiled([](auto& m) {
         m.header.type = 99;
         m.header.checksum = 0;
         m.header.checksum = shm::message_checksum(std::as_bytes(std::span(&m, 1)));
       }),
       Code::kProtocol, "type 99"},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.what);
    auto job = start("spoiler", 2);
    job->rank(1).send_raw(one.bytes);
    expect_ended(*job, 1, one.code, one.text);
  }
}

TEST_F(Faults, WrongStepsEndTheirSession) {
  const struct {
    const char* text;
    std::function<void(FakeJob&)> act;  // by rank 1
  } cases[] = {
      {"lr of group 0 is",
       [](FakeJob& job) {
         shm::StepRecord record = make_record(1, 2);
         record.groups[0].lr *= 2;
         job.write_grads(1, 1);
         job.rank(1).post(record);
       }},
      {"says step 9",
       [](FakeJob& job) {
         shm::StepRecord record = make_record(9, 2);  // the same slot of the ring as step 1
         job.write_grads(1, 1);
         job.rank(1).post_silently(record);
         job.rank(1).header().posted_step.store(1);
       }},
      {"gradients of step 0 (revision 0) in chunk 0",
       [](FakeJob& job) { job.rank(1).post(make_record(1, 2)); }},
      {"posted_step went from 0 to 77", [](FakeJob& job) { job.rank(1).post(make_record(77, 2)); }},
      {"LoadChunk from rank 1", [](FakeJob& job) { job.rank(1).send(shm::LoadChunk{}); }},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.text);
    auto job = start("wrong", 2);
    job->write_grads(0, 1);
    job->rank(0).post(make_record(1, 2));
    one.act(*job);
    expect_ended(*job, 1, Code::kProtocol, one.text);
    EXPECT_EQ(job->rank(0).header().committed_step.load(), 0u);
    EXPECT_TRUE(job->compare(Reference(job->model())).ok()) << "a refused step changed something";
  }
}

TEST_F(Faults, WhatComesBeforeHelloConcernsNoSession) {
  const FakeModel model = make_model(ComputeType::kFp32, 1, 1, kChunkNumel);
  auto trainer = FakeTrainer::attach(
      {.folder = daemon_->folder(), .job = "quiet", .shape = model.shape, .places = model.places});
  ASSERT_TRUE(trainer.ok());
  (*trainer)->send_raw(std::vector<std::byte>(5));
  (*trainer)->send(shm::AwaitReady{}, 1);
  shm::Hello forged{};
  forged.session_id = 1;
  (*trainer)->send(forged, 2);
  EXPECT_TRUE((*trainer)->await_peers().ok());
  EXPECT_TRUE((*trainer)->hello().ok());  // the first answer is to this
  (*trainer)->detach();
  EXPECT_NE(daemon_->log().find("event=control_dropped"), std::string::npos);
}

TEST_F(Faults, DyingBetweenAttachAndHello) {
  const FakeModel model = make_model(ComputeType::kFp32, 2, 1, kChunkNumel);
  FakeTrainer::Options options{
      .folder = daemon_->folder(), .job = "early", .shape = model.shape, .places = model.places};
  auto first = FakeTrainer::attach(options);
  ASSERT_TRUE(first.ok());
  options.rank = 1;
  auto second = FakeTrainer::attach(options);
  ASSERT_TRUE(second.ok());
  ASSERT_TRUE((*first)->await_peers().ok());
  (*second)->die();
  const auto fault = (*first)->wait_session_fault();
  ASSERT_TRUE(fault.ok()) << fault.status().message();
  EXPECT_EQ(fault->rank, 1u);
  // Also while the others have not come yet; then the name is free again.
  options.rank = 0;
  auto lonely = FakeTrainer::attach(options);
  ASSERT_TRUE(lonely.ok()) << lonely.status().message();
  (*lonely)->die();
  for (int round = 0; round < 2; ++round) {
    auto job = start("early", 2);
    EXPECT_TRUE(job->step(1).ok());
    job->detach();
  }
}

TEST_F(Faults, LeavingWhileOthersGoOn) {
  auto job = start("leaver", 2);
  ASSERT_TRUE(job->step(1).ok());
  job->rank(1).detach();
  Reference reference(job->model());
  reference.step(make_record(1, 2));
  EXPECT_TRUE(job->compare(reference).ok());  // its shards are still there
  job->write_grads(0, 2);
  job->rank(0).post(make_record(2, 2));
  const auto fault = job->rank(0).wait_session_fault();
  ASSERT_TRUE(fault.ok()) << fault.status().message();
  EXPECT_EQ(fault->rank, 1u);
  EXPECT_NE(text_of(*fault).find("rank 1 detached after step 1"), std::string::npos);
}

// ---- attach ----

class Attach : public Faults {
 protected:
  // Sends a request that `spoil` changed; the Refusal.
  Status refused(const std::function<void(shm::AttachRequest&)>& spoil, bool with_table = true,
                 const std::function<void(shm::AttachRequest&)>& spoil_sealed = {}) {
    const FakeModel model = make_model(ComputeType::kFp32, 2, 1, kChunkNumel);
    const std::vector<std::byte> table = shm::encode_table(model.places);
    const Result<UniqueFd> table_fd = shm::write_table_fd(table);
    if (table_file_bytes_ > 0) {
      EXPECT_EQ(::ftruncate(table_fd->get(), static_cast<off_t>(table_file_bytes_)), 0);
    }
    shm::AttachRequest request{};
    shm::set_text(request.job, "refused");
    request.shape.ranks = request.position.local_ranks = 2;
    request.shape.type = model.shape.type;
    request.shape.n_chunks = 1;
    request.shape.chunk_numel = kChunkNumel;
    request.table = {table.size(), shm::table_xxh64(table)};
    request.rules.accumulate = 1;
    spoil(request);
    shm::seal_message(request);
    if (spoil_sealed) spoil_sealed(request);
    const Result<UniqueFd> socket = shm::connect_attach(daemon_->folder().attach_socket());
    if (!socket.ok()) return socket.status();
    std::vector<int> fds;
    if (with_table) fds.push_back(table_fd->get());
    ELIXIR_RETURN_IF_ERROR(
        shm::send_packet(socket->get(), std::as_bytes(std::span(&request, 1)), fds, 1000));
    const Result<shm::Packet> packet = shm::receive_packet(socket->get(), FakeTrainer::kDeadlineMs);
    if (!packet.ok()) return packet.status();
    const Result<shm::Refusal> refusal = shm::decode_message<shm::Refusal>(packet->bytes);
    if (!refusal.ok()) return Status();  // it was no refusal
    return Status(static_cast<Code>(refusal->code), std::string(shm::get_text(refusal->text)));
  }

  uint64_t table_file_bytes_ = 0;  // where its memfd is longer than the table
};

TEST_F(Attach, BadRequestsAreRefusedByName) {
  const struct {
    Code code;
    const char* text;
    std::function<void(shm::AttachRequest&)> spoil;
  } cases[] = {
      {Code::kInvalidArgument, "rank 2 of a job of 2", [](auto& r) { r.position.rank = 2; }},
      {Code::kInvalidArgument, "local rank 1 of 2", [](auto& r) { r.position.local_rank = 1; }},
      {Code::kInvalidArgument, "local rank 0 of 1", [](auto& r) { r.position.local_ranks = 1; }},
      {Code::kProtocol, "exchange 2",
       [](auto& r) { r.shape.exchange = static_cast<shm::Exchange>(2); }},
      {Code::kInvalidArgument, "ranks", [](auto& r) { r.shape.ranks = 0; }},
      {Code::kProtocol, "pins_params is 2", [](auto& r) { r.wishes.pins_params = 2; }},
      {Code::kProtocol, "compute type 7",
       [](auto& r) { r.shape.type = static_cast<ComputeType>(7); }},
      {Code::kInvalidArgument, "chunk length", [](auto& r) { r.shape.chunk_numel = 100; }},
      {Code::kInvalidArgument, "chunks", [](auto& r) { r.shape.n_chunks = UINT32_MAX; }},
      {Code::kProtocol, "checksum announced", [](auto& r) { ++r.table.xxh64; }},
      {Code::kProtocol, "elements have at most", [](auto& r) { r.table.bytes = UINT64_MAX; }},
      {Code::kProtocol, "table ends at byte", [](auto& r) { r.table.bytes += 1; }},
      {Code::kProtocol, "outside or misaligned", [](auto& r) { r.shape.chunk_numel = 256; }},
      {Code::kInvalidArgument, "accumulate is 0", [](auto& r) { r.rules.accumulate = 0; }},
      {Code::kInvalidArgument, "accumulate is 65537", [](auto& r) { r.rules.accumulate = 65537; }},
      {Code::kProtocol, "immediate is 2", [](auto& r) { r.rules.immediate = 2; }},
      {Code::kProtocol, "3 moments", [](auto& r) { r.shape.n_moments = 3; }},
      {Code::kProtocol, "trained parameters",
       [](auto& r) { r.shape.n_parameters = shm::kMaxParameters + 1; }},
      {Code::kProtocol, "norms 7", [](auto& r) { r.rules.norms = 7; }},
      {Code::kInvalidArgument, "use early or deferred updates",
       [](auto& r) { r.rules.immediate = r.rules.norms = 1; }},
      {Code::kProtocol, "early 2", [](auto& r) { r.rules.early = 2; }},
      {Code::kProtocol, "one of early and immediate",
       [](auto& r) { r.rules.immediate = r.rules.early = 1; }},
      {Code::kInvalidArgument, "spare slots",
       [](auto& r) { r.shape.n_spare_slots = r.shape.n_chunks + 1; }},
  };
  for (const auto& one : cases) {
    const Status status = refused(one.spoil);
    EXPECT_EQ(status.code(), one.code) << one.text << ": " << status.message();
    EXPECT_NE(status.message().find(one.text), std::string::npos) << status.message();
  }
  EXPECT_EQ(refused([](auto&) {}, false).code(), Code::kProtocol);  // no descriptor
}

// Sparse, a memfd of any length costs a trainer nothing, and elixird memory and a third of a
// second.
TEST_F(Attach, ATableLongerThanItsChunksCanFillIsNotRead) {
  table_file_bytes_ = shm::kMaxTableBytes;
  uint64_t most_bytes = 0;
  const auto announce = [&](uint64_t bytes) {
    return [&most_bytes, bytes](auto& r) {
      most_bytes = shm::most_table_bytes(r.shape);
      r.table.bytes = bytes == 0 ? most_bytes + 1 : bytes;
    };
  };
  for (const uint64_t bytes : {uint64_t{0}, shm::kMaxTableBytes}) {
    const Status status = refused(announce(bytes));
    ASSERT_LT(most_bytes + 1, shm::kMaxTableBytes);
    EXPECT_EQ(status.code(), Code::kProtocol);
    EXPECT_EQ(status.message(),
              fmt::format("a parameter table of {} bytes; 1 chunks of {} "
                          "elements have at most {}",
                          bytes == 0 ? most_bytes + 1 : bytes, kChunkNumel, most_bytes));
  }
  // As long as it may be, it is read.
  const Status longest = refused([](auto& r) { r.table.bytes = shm::most_table_bytes(r.shape); });
  EXPECT_NE(longest.message().find("checksum announced"), std::string::npos) << longest.message();
}

TEST_F(Attach, AnotherVersionIsToldSo) {
  const Status status = refused([](auto&) {}, true, [](auto& r) { r.header.version += 1; });
  EXPECT_EQ(status.code(), Code::kVersionMismatch);
  EXPECT_NE(status.message().find("layout version"), std::string::npos) << status.message();
}

TEST_F(Attach, OnlyAMemfdIsRead) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd read_end(ends[0]), write_end(ends[1]);
  const Result<UniqueFd> socket = shm::connect_attach(daemon_->folder().attach_socket());
  shm::AttachRequest request{};
  shm::set_text(request.job, "pipe");
  request.shape.ranks = request.shape.n_chunks = request.position.local_ranks = 1;
  request.shape.chunk_numel = kChunkNumel;
  request.rules = {1, 0, 0};
  request.table.bytes = 100;
  const int fds[] = {read_end.get()};
  ASSERT_TRUE(shm::send_message(socket->get(), request, fds).ok());
  const auto packet = shm::receive_packet(socket->get(), FakeTrainer::kDeadlineMs);
  ASSERT_TRUE(packet.ok());
  const auto refusal = shm::decode_message<shm::Refusal>(packet->bytes);
  ASSERT_TRUE(refusal.ok());
  // Not for what came of reading it.
  const std::string text(shm::get_text(refusal->text));
  EXPECT_NE(text.find("without a memfd"), std::string::npos) << text;
}

TEST_F(Attach, RanksOfAJobHaveOnePlanAndOnePlaceEach) {
  FakeModel model = make_model(ComputeType::kFp32, 2, 1, kChunkNumel);
  FakeTrainer::Options options{
      .folder = daemon_->folder(), .job = "plan", .shape = model.shape, .places = model.places};
  auto first = FakeTrainer::attach(options);
  ASSERT_TRUE(first.ok());
  auto twin = FakeTrainer::attach(options);
  EXPECT_EQ(twin.status().code(), Code::kInvalidArgument);
  EXPECT_NE(twin.status().message().find("attached already"), std::string::npos);
  options.rank = 1;
  options.places[0].name = "renamed";
  auto other = FakeTrainer::attach(options);
  EXPECT_EQ(other.status().code(), Code::kInvalidArgument);
  EXPECT_NE(other.status().message().find("another plan"), std::string::npos);
  EXPECT_NE(other.status().message().find("'renamed'"), std::string::npos)
      << other.status().message();
  // The refusals cost the first one nothing.
  options.places = model.places;
  auto second = FakeTrainer::attach(options);
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_TRUE((*first)->await_peers().ok());
  (*first)->detach();
  (*second)->detach();
}

}  // namespace
}  // namespace elixir::testing::faults
