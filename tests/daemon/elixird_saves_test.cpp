// Folders written and read by a real elixird.

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/compute_type_names.h"
#include "checkpoint/listing.h"
#include "checkpoint/load_plan.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/fake_job.h"
#include "tests/support/sanitized.h"

namespace elixir::testing::saves {
namespace {

constexpr uint64_t kChunkNumel = 128 * 37;

// Elixird waits for nobody at its start.
std::vector<std::string> quick(std::vector<std::string> more = {}) {
  std::vector<std::string> all = {"--no-bandwidth-probe", "--workers", "2", "--test-slice-numel",
                                  "256"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Every rank asks, and is heard.
std::vector<uint32_t> save(FakeJob& job, const std::string& parent, uint32_t step,
                           std::optional<uint64_t> shadow_bytes = {}) {
  checkpoints::Details details;
  details.shadow_bytes = shadow_bytes;
  details.keep.last = 2;
  std::vector<uint32_t> numbers;
  for (auto& rank : job.ranks()) {
    const bool first = numbers.empty();
    numbers.push_back(rank->save(parent, checkpoints::step_name(step), step,
                                 first ? details : checkpoints::Details{}));
    const Status heard = rank->wait_heard(numbers.back());
    EXPECT_TRUE(heard.ok()) << heard.message();
  }
  return numbers;
}

// A job whose states come from the folder.
Result<std::unique_ptr<FakeJob>> restore(const FakeJob::Options& options, const std::string& path) {
  Result<std::unique_ptr<FakeJob>> job = FakeJob::attach(options);
  if (!job.ok()) return job;
  ELIXIR_RETURN_IF_ERROR((*job)->rank(0).wait_over((*job)->rank(0).load(path)));
  for (auto& rank : (*job)->ranks()) ELIXIR_RETURN_IF_ERROR(rank->await_ready());
  return job;
}

// The step as a run made it that had so many before.
Status later_step(FakeJob& job, uint32_t step, uint32_t before) {
  const FakeModel& model = job.model();
  for (uint32_t rank = 0; rank < model.shape.ranks; ++rank) {
    for (uint32_t chunk = 0; chunk < model.shape.n_chunks; ++chunk) {
      const auto grads = fake_gradient(model, rank, chunk, step + before);
      ELIXIR_RETURN_IF_ERROR(job.rank(rank).wait_param(chunk, step - 1));
      job.rank(rank).write_grads(chunk, grads.data(), step);
    }
  }
  for (auto& rank : job.ranks()) {
    shm::StepRecord record = make_record(step + before, model.shape.ranks);
    record.step = step;
    rank->post(record);
  }
  ELIXIR_RETURN_IF_ERROR(job.swing(step));
  return job.wait_finished(step);
}

// Every tensor of the folder: name, shape and a hash of its bytes, in the order of names.
std::string tensors_of(const checkpoints::StoredFolder& folder) {
  std::vector<std::string> lines;
  for (const auto* tensors : {&folder.model, &folder.optimizer}) {
    for (const checkpoints::StoredTensor& tensor : *tensors) {
      std::ifstream file(folder.path + "/" + folder.files[tensor.file].name, std::ios::binary);
      std::string bytes(tensor.end - tensor.begin, '\0');
      file.seekg(static_cast<std::streamoff>(tensor.offset));
      file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      EXPECT_TRUE(file.good()) << tensor.name;
      lines.push_back(fmt::format("{} [{}] {:x}", tensor.name, fmt::join(tensor.shape, ","),
                                  checkpoints::xxh3_of(std::as_bytes(std::span(bytes)))));
    }
  }
  std::sort(lines.begin(), lines.end());
  return fmt::format("{}", fmt::join(lines, "\n"));
}

struct Case {
  ComputeType type;
  std::string rate;        // of the disk
  uint64_t shadow_chunks;  // 100: all
  uint32_t spare_slots;    // updates are early with some
  uint32_t swing_chunks = 0;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const ComputeType type : {ComputeType::kBf16, ComputeType::kFp16, ComputeType::kFp32}) {
    for (const char* rate : {"0", "1MiB", "8MiB"}) {
      for (const uint64_t shadow : {0, 2, 100}) {
        for (const uint32_t spare : {0, 2, 6}) all.push_back({type, rate, shadow, spare});
        all.push_back({type, rate, shadow, /*spare_slots=*/0, /*swing_chunks=*/3});
      }
    }
  }
  return all;
}

class Saves : public ::testing::TestWithParam<Case> {
 protected:
  // A test that is held up until its save is over does not stall; all of them are not.
  static void TearDownTestSuite() {
    if (may_stall_ > 0) {
      EXPECT_GT(stalled_, 0u) << "of " << may_stall_;
    }
  }

  static inline uint32_t may_stall_ = 0, stalled_ = 0;
};

TEST_P(Saves, HoldTheBitsOfTheStepWhileTrainingGoesOnAndARunGoesOnFromThem) {
  FakeModel model = make_model(GetParam().type, 2, 6, kChunkNumel);
  model.shape.n_spare_slots = GetParam().spare_slots;
  model.shape.n_swing_chunks = GetParam().swing_chunks;
  model.shape.n_swing_lanes = GetParam().swing_chunks > 0 ? 2 : 0;
  DaemonProcess daemon(quick({"--checkpoint-rate", GetParam().rate}));
  const TemporaryFolder folder;
  const FakeJob::Options options{
      .folder = daemon.folder(), .model = model, .early = GetParam().spare_slots > 0 ? 1u : 0u};
  auto job = FakeJob::start(options);
  ASSERT_TRUE(job.ok()) << job.status().message();
  Reference reference(model);
  const auto advance = [&](FakeJob& by, uint32_t step) {
    ASSERT_TRUE(by.step(step).ok());
    reference.step(make_record(step, 2));
  };
  for (uint32_t step = 1; step <= 3; ++step) advance(**job, step);
  const Reference at_three = reference;
  const uint64_t chunk_bytes = model.shape.image_bytes() * 2;
  const auto numbers = save(**job, folder.path(), 3, GetParam().shadow_chunks * chunk_bytes);
  for (uint32_t step = 4; step <= 8; ++step) advance(**job, step);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const Status over = (*job)->rank(rank).wait_over(numbers[rank]);
    ASSERT_TRUE(over.ok()) << over.message();
  }
  // Saving has changed nothing.
  EXPECT_TRUE((*job)->compare(reference).ok()) << (*job)->compare(reference).message();
  const shm::FolderResult& result = (*job)->rank(0).folder_result(numbers[0]);
  EXPECT_LE(result.shadow_peak_bytes, GetParam().shadow_chunks * chunk_bytes);
  // What a slow disk does to a job that may copy nothing is counted. (Early updates leave the chunk
  // where it is read.)
  if (GetParam().rate == "1MiB" && GetParam().shadow_chunks == 0 && GetParam().spare_slots == 0) {
    ++may_stall_;
    stalled_ += result.stall_ns > 0 ? 1 : 0;
  }
  (*job)->detach();

  const auto latest = checkpoints::latest_checkpoint(folder.path());
  ASSERT_TRUE(latest.ok()) << latest.status().message();
  const auto stored = checkpoints::open_stored_folder(latest->checkpoint.path);
  ASSERT_TRUE(stored.ok()) << stored.status().message();
  const Status whole = checkpoints::verify(*stored, 1, nullptr);
  EXPECT_TRUE(whole.ok()) << whole.message();
  auto again = restore({.folder = daemon.folder(), .name = "again", .model = model},
                       latest->checkpoint.path);
  ASSERT_TRUE(again.ok()) << again.status().message();
  const Status same = (*again)->compare(at_three);
  ASSERT_TRUE(same.ok()) << same.message();
  EXPECT_FALSE((*again)->compare(reference).ok()) << "the control: five steps change nothing";
  for (uint32_t step = 1; step <= 5; ++step) {
    const Status made = later_step(**again, step, 3);
    ASSERT_TRUE(made.ok()) << made.message();
  }
  EXPECT_TRUE((*again)->compare(reference).ok()) << (*again)->compare(reference).message();
  (*again)->detach();
}

INSTANTIATE_TEST_SUITE_P(TypesDisksBudgets, Saves, ::testing::ValuesIn(cases()),
                         [](const auto& info) {
                           return fmt::format("{}_{}_{}_{}_{}", compute_type_name(info.param.type),
                                              info.param.rate, info.param.shadow_chunks,
                                              info.param.spare_slots, info.param.swing_chunks);
                         });

// Of gradients that were dropped again between two steps.
TEST(Saves, CountNoEarlyUpdateOfTheStepAfter) {
  FakeModel model = make_model(ComputeType::kBf16, 2, 6, kChunkNumel);
  model.shape.n_spare_slots = 6;
  DaemonProcess daemon(quick());
  const TemporaryFolder folder;
  auto job = FakeJob::start({.folder = daemon.folder(), .model = model, .early = 1});
  ASSERT_TRUE(job.ok()) << job.status().message();
  Reference reference(model);
  for (uint32_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE((*job)->step(step).ok());
    reference.step(make_record(step, 2));
  }
  const auto last_end = [&] { return (*job)->rank(0).chunk_record(5).update_end_ns.load(); };
  const uint64_t before = last_end();
  for (auto& rank : (*job)->ranks()) rank->open(make_record(4, 2));
  (*job)->publish(4, 1);
  EXPECT_TRUE(becomes_true([&] { return last_end() != before; }));
  for (auto& rank : (*job)->ranks()) rank->discard();
  const auto numbers = save(**job, folder.path(), 3);
  ASSERT_TRUE((*job)->rank(0).wait_over(numbers[0]).ok());
  auto again = restore({.folder = daemon.folder(), .name = "again", .model = model},
                       folder.path(checkpoints::step_name(3)));
  ASSERT_TRUE(again.ok()) << again.status().message();
  ASSERT_TRUE(later_step(**again, 1, 3).ok());
  ASSERT_TRUE((*job)->step(4).ok());
  reference.step(make_record(4, 2));
  for (const FakeJob* one : {again->get(), job->get()}) {
    const Status same = one->compare(reference);
    EXPECT_TRUE(same.ok()) << same.message();
  }
  (*again)->detach();
  (*job)->detach();
}

// The save waits for the trainers' updates of its step, and a slow disk then holds up those of the
// next; whoever goes on from it may have other swing chunks.
TEST(Saves, OfAStepWhoseSwingChunksAreUnderWay) {
  FakeModel model = make_model(ComputeType::kBf16, 2, 6, kChunkNumel);
  model.shape.n_swing_chunks = 4;
  model.shape.n_swing_lanes = 2;
  DaemonProcess daemon(quick({"--checkpoint-rate", "256KiB"}));
  const TemporaryFolder folder;
  auto job = FakeJob::start({.folder = daemon.folder(), .model = model});
  ASSERT_TRUE(job.ok()) << job.status().message();
  Reference reference(model);
  for (uint32_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE((*job)->step(step).ok());
    reference.step(make_record(step, 2));
  }
  (*job)->post(4);
  ASSERT_TRUE((*job)->rank(0).swing(4).ok());
  const auto numbers = save(**job, folder.path(), 4, /*shadow_bytes=*/0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  ASSERT_TRUE((*job)->rank(1).swing(4).ok());
  ASSERT_TRUE((*job)->wait_finished(4).ok());
  reference.step(make_record(4, 2));
  const Reference at_four = reference;
  for (uint32_t step = 5; step <= 6; ++step) {
    ASSERT_TRUE((*job)->step(step).ok());
    reference.step(make_record(step, 2));
  }
  ASSERT_TRUE((*job)->rank(0).wait_over(numbers[0]).ok());
  EXPECT_GT((*job)->rank(0).folder_result(numbers[0]).stall_ns, 0u);
  EXPECT_TRUE((*job)->compare(reference).ok()) << (*job)->compare(reference).message();
  (*job)->detach();
  for (const uint32_t swing : {0u, 1u, 6u}) {
    FakeModel other = model;
    other.shape.n_swing_chunks = swing;
    other.shape.n_swing_lanes = swing > 0 ? 3 : 0;
    auto again = restore({.folder = daemon.folder(), .name = "again", .model = other},
                         folder.path(checkpoints::step_name(4)));
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_TRUE((*again)->compare(at_four).ok()) << (*again)->compare(at_four).message();
    for (uint32_t step = 1; step <= 2; ++step) ASSERT_TRUE(later_step(**again, step, 4).ok());
    EXPECT_TRUE((*again)->compare(reference).ok()) << (*again)->compare(reference).message();
    (*again)->detach();
  }
}

// Ranks, chunk lengths: any to any.
TEST(Saves, AreRestoredByOtherNumbersOfRanks) {
  DaemonProcess daemon(quick());
  for (const uint32_t from : {1, 2, 3, 4}) {
    const TemporaryFolder folder;
    const FakeModel model = make_model(ComputeType::kBf16, from, 3, kChunkNumel);
    auto job = FakeJob::start({.folder = daemon.folder(), .model = model});
    ASSERT_TRUE(job.ok()) << job.status().message();
    Reference reference(model);
    for (uint32_t step = 1; step <= 2; ++step) {
      ASSERT_TRUE((*job)->step(step).ok());
      reference.step(make_record(step, from));
    }
    const auto numbers = save(**job, folder.path(), 2);
    ASSERT_TRUE((*job)->rank(0).wait_over(numbers[0]).ok());
    (*job)->detach();
    for (const uint32_t to : {1, 2, 3, 4}) {
      FakeModel other = model;
      other.shape.ranks = to;
      auto again =
          restore({.folder = daemon.folder(), .name = fmt::format("to-{}", to), .model = other},
                  folder.path(checkpoints::step_name(2)));
      ASSERT_TRUE(again.ok()) << again.status().message();
      const Status same = (*again)->compare(reference);
      EXPECT_TRUE(same.ok()) << from << " to " << to << ": " << same.message();
      (*again)->detach();
    }
  }
}

// Parameters longer than a chunk are one tensor each: whatever the chunk lengths, ranks and types,
// a folder holds the same tensors, and a run that goes on from it has the same bits. The longest
// one has been left out of a step, so that its own count must come back to each of its chunks.
TEST(Saves, OfOneChunkLengthAreRestoredWithAnotherWhereParametersAreLongerThanAChunk) {
  constexpr uint64_t kLengths[] = {128 * 37 * 3, 128 * 37, 128 * 11};
  DaemonProcess daemon(quick());
  const auto model_of = [](ComputeType type, uint32_t ranks, uint64_t chunk_numel) {
    FakeModel model = make_long_model(type, ranks, chunk_numel);
    model.unused = [](uint32_t place, uint32_t step) { return place == 0 && step == 1; };
    return model;
  };
  for (const ComputeType type : {ComputeType::kBf16, ComputeType::kFp16, ComputeType::kFp32}) {
    std::string hashes;  // of the first folder's tensors
    for (const uint64_t from : kLengths) {
      const TemporaryFolder folder;
      const FakeModel model = model_of(type, 2, from);
      auto job = FakeJob::start({.folder = daemon.folder(), .model = model});
      ASSERT_TRUE(job.ok()) << job.status().message();
      for (uint32_t step = 1; step <= 3; ++step) ASSERT_TRUE((*job)->step(step).ok());
      const auto numbers = save(**job, folder.path(), 3);
      for (uint32_t step = 4; step <= 5; ++step) ASSERT_TRUE((*job)->step(step).ok());
      const Status over = (*job)->rank(0).wait_over(numbers[0]);
      ASSERT_TRUE(over.ok()) << over.message();
      (*job)->detach();

      const std::string path = folder.path(checkpoints::step_name(3));
      const auto stored = checkpoints::open_stored_folder(path);
      ASSERT_TRUE(stored.ok()) << stored.status().message();
      const Status whole = checkpoints::verify(*stored, 1, nullptr);
      EXPECT_TRUE(whole.ok()) << whole.message();
      const std::string found = tensors_of(*stored);
      EXPECT_EQ(hashes.empty() ? found : hashes, found) << from;
      hashes = found;

      for (const uint64_t to : kLengths) {
        for (const uint32_t ranks : {1u, 2u, 3u}) {
          SCOPED_TRACE(fmt::format("{}, from {} to {} elements a chunk and {} ranks",
                                   compute_type_name(type), from, to, ranks));
          FakeModel other = model_of(type, ranks, to);
          Reference reference(model_of(type, 2, to));
          for (uint32_t step = 1; step <= 3; ++step) reference.step(make_record(step, 2));
          other.unused = {};
          auto again = restore({.folder = daemon.folder(), .name = "again", .model = other}, path);
          ASSERT_TRUE(again.ok()) << again.status().message();
          const Status same = (*again)->compare(reference);
          EXPECT_TRUE(same.ok()) << same.message();
          for (uint32_t step = 1; ranks == 2 && step <= 2; ++step) {
            const Status made = later_step(**again, step, 3);
            ASSERT_TRUE(made.ok()) << made.message();
            reference.step(make_record(step + 3, 2));
          }
          const Status later = (*again)->compare(reference);
          EXPECT_TRUE(later.ok()) << "two steps later: " << later.message();
          (*again)->detach();
        }
      }
    }
  }
}

// A long parameter that is not trained comes from the folder as well.
TEST(Saves, BringParametersLongerThanAChunkIntoFrozenChunks) {
  DaemonProcess daemon(quick());
  const TemporaryFolder folder;
  const FakeModel model = make_long_model(ComputeType::kBf16, 2, kChunkNumel);
  auto job = FakeJob::start({.folder = daemon.folder(), .model = model});
  ASSERT_TRUE(job.ok()) << job.status().message();
  Reference reference(model);
  ASSERT_TRUE((*job)->step(1).ok());
  reference.step(make_record(1, 2));
  const auto numbers = save(**job, folder.path(), 1);
  ASSERT_TRUE((*job)->rank(0).wait_over(numbers[0]).ok());
  (*job)->detach();

  // The first parameter's three chunks become the last three.
  FakeModel other = model;
  std::rotate(other.places.begin(), other.places.begin() + 1, other.places.end());
  other.shape.n_chunks -= 3;
  other.shape.n_frozen_chunks = 3;
  --other.shape.n_parameters;
  for (shm::ParameterPlace& place : other.places) place.chunk -= 3;
  other.places.back().chunk = other.shape.n_chunks;
  auto again = restore({.folder = daemon.folder(), .name = "frozen", .model = other},
                       folder.path(checkpoints::step_name(1)));
  ASSERT_TRUE(again.ok()) << again.status().message();
  for (uint32_t chunk = 0; chunk < other.shape.total_chunks(); ++chunk) {
    const uint32_t before = (chunk + 3) % other.shape.total_chunks();
    std::vector<std::byte> have = (*again)->rank(0).gather(chunk), want = reference.param(before);
    const uint64_t bytes = model.used_numel(before) * element_bytes(ComputeType::kBf16);
    have.resize(bytes), want.resize(bytes);
    EXPECT_EQ(have, want) << "chunk " << chunk;
  }
  (*again)->detach();
}

// ---- deaths ----

// While a job trains and saves after every step, somebody is killed. What is found is a step that
// was made, whole.
class Deaths : public ::testing::Test {
 protected:
  static constexpr int kKills = kSanitized ? 20 : 100;
  static constexpr int kFound = kSanitized ? 2 : 5;
  static constexpr int kSlower = kSanitized ? 10 : 1;
  static constexpr uint32_t kSteps = 12;

  // Trains and saves until it is killed, or its elixird; it is a process of its own.
  pid_t start_trainer(const shm::RuntimeFolder& folder, const std::string& parent) {
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    auto job = FakeJob::start({.folder = folder, .model = model_});
    if (!job.ok()) ::_exit(3);
    for (uint32_t step = 1; step <= kSteps; ++step) {
      if (!(*job)->step(step).ok()) ::_exit(0);
      const uint32_t number =
          (*job)->rank(0).save(parent, checkpoints::step_name(step), step, {.keep = {.last = 2}});
      if (!(*job)->rank(0).wait_heard(number).ok()) ::_exit(0);
      if (number >= 3 && !(*job)->rank(0).wait_over(number - 2).ok()) ::_exit(0);
    }
    ::_exit(0);
  }

  void let_it_train(int times = 1) {
    std::this_thread::sleep_for(std::chrono::microseconds(
        kSlower * times * std::uniform_int_distribution(2'000, 120'000)(random_)));
  }

  void expect_whole(const std::string& parent, bool* found) {
    const auto listed = checkpoints::list_checkpoints(parent);
    ASSERT_TRUE(listed.ok()) << listed.status().message();
    for (const checkpoints::ListedCheckpoint& one : *listed) {
      ASSERT_TRUE(one.valid) << one.path << ": " << one.why;
      const auto stored = checkpoints::open_stored_folder(one.path);
      ASSERT_TRUE(stored.ok()) << stored.status().message();
      const Status whole = checkpoints::verify(*stored, 1, nullptr);
      ASSERT_TRUE(whole.ok()) << whole.message();
    }
    *found = !listed->empty();
  }

  const FakeModel model_ = make_model(ComputeType::kBf16, 1, 4, kChunkNumel);
  std::mt19937 random_{20261125};
};

TEST_F(Deaths, OfElixirdInTheMidstOfASaveLeaveWholeCheckpointsAlone) {
  int found = 0;
  const TemporaryFolder folder;
  for (int kill = 0; kill < kKills || (found < kFound && kill < 10 * kKills); ++kill) {
    DaemonProcess daemon(quick({"--checkpoint-rate", "4MiB"}));
    const std::string parent = folder.path(std::to_string(kill));
    std::filesystem::create_directory(parent);
    const pid_t trainer = start_trainer(daemon.folder(), parent);
    // Where none is saved so soon, the machine is slow: the others are given longer.
    let_it_train(1 + kill / kKills);
    daemon.signal(SIGKILL);
    daemon.wait();
    ::kill(trainer, SIGKILL);  // it has no eye for that
    ::waitpid(trainer, nullptr, 0);
    bool some = false;
    expect_whole(parent, &some);
    if (HasFatalFailure()) return;
    found += some ? 1 : 0;
  }
  EXPECT_GE(found, kFound) << "most were killed before anything was saved: no test";
}

TEST_F(Deaths, OfTrainersLeaveTheSaveToElixird) {
  int found = 0;
  DaemonProcess daemon(quick({"--checkpoint-rate", "4MiB"}));
  const TemporaryFolder folder;
  for (int kill = 0; kill < kKills; ++kill) {
    const std::string parent = folder.path(std::to_string(kill));
    std::filesystem::create_directory(parent);
    const pid_t trainer = start_trainer(daemon.folder(), parent);
    let_it_train();
    ::kill(trainer, SIGKILL);
    ::waitpid(trainer, nullptr, 0);
    // The last one is finished though nobody is there any more.
    EXPECT_TRUE(becomes_true([&] {
      const auto status = nlohmann::json::parse(daemon.ask_status(), nullptr, false);
      return status.is_object() && status["jobs"].empty();
    }));
    for (const auto& entry : std::filesystem::directory_iterator(parent)) {
      EXPECT_EQ(entry.path().string().find(".tmp-"), std::string::npos) << entry.path();
    }
    bool some = false;
    expect_whole(parent, &some);
    if (HasFatalFailure()) return;
    found += some ? 1 : 0;
  }
  EXPECT_GE(found, kFound) << "most were killed before anything was saved: no test";
}

// ---- disks ----

// A file system of so many bytes; gone with the object.
class SmallDisk {
 public:
  explicit SmallDisk(uint64_t bytes) {
    mounted_ = ::mount("tmpfs", folder_.path().c_str(), "tmpfs", 0,
                       fmt::format("size={}", bytes).c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  bool mounted() const { return mounted_; }
  const std::string& path() const { return folder_.path(); }

 private:
  const TemporaryFolder folder_;
  bool mounted_ = false;
};

TEST(FullDisk, FailsTheSaveLeavesTheOlderOneAndTrainingGoesOn) {
  const SmallDisk disk(400 << 10);
  if (!disk.mounted()) GTEST_SKIP() << "only root may mount a file system";
  const FakeModel model = make_model(ComputeType::kBf16, 2, 4, kChunkNumel);
  DaemonProcess daemon(quick());
  auto job = FakeJob::start({.folder = daemon.folder(), .model = model});
  ASSERT_TRUE(job.ok()) << job.status().message();
  Reference reference(model);
  for (uint32_t step = 1; step <= 4; ++step) {
    ASSERT_TRUE((*job)->step(step).ok());
    reference.step(make_record(step, 2));
    const auto numbers = save(**job, disk.path(), step);
    const Status over = (*job)->rank(0).wait_over(numbers[0]);
    EXPECT_EQ(over.code(), step == 1 ? Code::kOk : Code::kResourceExhausted) << over.message();
    EXPECT_EQ((*job)->rank(1).wait_over(numbers[1]).code(), over.code());
  }
  EXPECT_TRUE((*job)->compare(reference).ok());
  const auto saves = nlohmann::json::parse(daemon.ask_status())["jobs"][0]["checkpoints"];
  EXPECT_EQ(saves["published"], 1);
  EXPECT_EQ(saves["failed"], 3);
  EXPECT_NE(saves["error_last"].get<std::string>().find("No space left"), std::string::npos)
      << saves["error_last"];
  const auto listed = checkpoints::list_checkpoints(disk.path());
  ASSERT_TRUE(listed.ok());
  ASSERT_EQ(listed->size(), 1u);
  EXPECT_TRUE((*listed)[0].valid) << (*listed)[0].why;
  for (const auto& entry : std::filesystem::directory_iterator(disk.path())) {
    EXPECT_EQ(entry.path().filename(), checkpoints::step_name(1)) << "left over";
  }
  (*job)->detach();
}

// ---- what no correct trainer sends ----

class HostileRequests : public ::testing::Test {
 protected:
  HostileRequests() : daemon_(quick()), model_(make_model(ComputeType::kFp32, 1, 2, kChunkNumel)) {}

  std::unique_ptr<FakeJob> start(const std::string& name) {
    auto job = FakeJob::start({.folder = daemon_.folder(), .name = name, .model = model_});
    EXPECT_TRUE(job.ok()) << job.status().message();
    return std::move(*job);
  }
  // Ends its own session, and nothing else.
  void expect_ended(FakeJob& job, const std::string& needle) {
    const auto fault = job.rank(0).wait_session_fault();
    ASSERT_TRUE(fault.ok()) << needle << ": " << fault.status().message();
    EXPECT_EQ(static_cast<Code>(fault->code), Code::kProtocol) << fault->text;
    EXPECT_NE(std::string(fault->text).find(needle), std::string::npos) << fault->text;
    EXPECT_TRUE(daemon_.running());
  }

  DaemonProcess daemon_;
  const FakeModel model_;
  const TemporaryFolder folder_;
};

TEST_F(HostileRequests, EndTheirSessionAlone) {
  const UniqueFd folder(::open(folder_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  shm::SaveFolder good{};
  good.number = 1;
  shm::set_text(good.name, "a");
  struct Bad {
    const char* needle;
    shm::SaveFolder message;
    std::vector<int> fds;
  };
  std::vector<Bad> all = {{"request 7 for a folder", good, {folder.get(), file.get()}},
                          {"descriptors, not 2", good, {folder.get()}},
                          {"descriptors, not 4", good, {folder.get(), file.get()}},
                          {"no folder", good, {file.get(), file.get()}},
                          {"bytes of details", good, {folder.get(), file.get()}}};
  all[0].message.number = 7;
  all[2].message.flags = shm::kHasStaging | shm::kHasLock;
  all[4].message.details_bytes = uint64_t{1} << 60;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto job = start(fmt::format("bad-{}", i));
    job->rank(0).send_request(all[i].message, all[i].fds);
    expect_ended(*job, all[i].needle);
  }
  {  // A LoadFolder of a rank, with a file in the folder's place.
    const auto job = start("bad-load");
    shm::LoadFolder load{};
    load.number = 1;
    const int fds[] = {file.get(), file.get()};
    job->rank(0).send_request(load, fds);
    expect_ended(*job, "no folder");
  }
  {  // More than may be under way.
    const auto job = start("many");
    for (uint32_t number = 1; number <= shm::kFolderRing; ++number) {
      shm::SaveFolder message = good;
      message.number = number;
      message.details_bytes = 8;
      const int fds[] = {folder.get(), file.get()};
      job->rank(0).send_request(message, fds);
    }
    // They may have been refused, one after the other, before the last one came.
    EXPECT_TRUE(daemon_.running());
  }
}

// A sealed memfd with so many brackets as its JSON.
UniqueFd brackets(uint64_t count) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const std::string text(1 << 20, '[');
  EXPECT_EQ(::write(fd.get(), &count, sizeof count), static_cast<ssize_t>(sizeof count));
  for (uint64_t written = 0; written < count; written += text.size()) {
    EXPECT_EQ(::write(fd.get(), text.data(), text.size()), std::ssize(text));
  }
  EXPECT_EQ(
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL), 0);
  return fd;
}

uint64_t peak_kib(pid_t pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  std::string field;
  uint64_t kib = 0;
  while (status >> field && field != "VmHWM:") continue;
  status >> kib;
  EXPECT_GT(kib, 0u);
  return kib;
}

// Of a save and of a load; what is deeply nested takes no memory beside its own bytes.
TEST_F(HostileRequests, DetailsThatAreNoneEndTheirSessionAlone) {
  constexpr uint64_t kBrackets = uint64_t{60} << 20;
  const UniqueFd folder(::open(folder_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const UniqueFd file(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  const UniqueFd deep = brackets(kBrackets);
  const auto other = start("other");
  const uint64_t before_kib = peak_kib(daemon_.pid());
  const auto expect_refused = [&](const std::string& name, int details, uint64_t bytes,
                                  const char* needle) {
    const int fds[] = {folder.get(), details};
    shm::SaveFolder save{};
    save.number = 1;
    save.details_bytes = bytes;
    shm::set_text(save.name, "a");
    const auto saves = start(name);
    saves->rank(0).send_request(save, fds);
    expect_ended(*saves, needle);
    shm::LoadFolder load{};
    load.number = 1;
    load.details_bytes = bytes;
    const auto loads = start(name + "-load");
    loads->rank(0).send_request(load, fds);
    expect_ended(*loads, needle);
  };
  expect_refused("zeros", file.get(), 4096, "no sealed memfd");
  expect_refused("deep", deep.get(), kBrackets + sizeof(uint64_t), "deeper than");
  ASSERT_TRUE(other->step(1).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
#if defined(__SANITIZE_THREAD__)
  constexpr uint64_t kMost = 5 * 4;  // each byte that is touched has four of the sanitizer's
#else
  constexpr uint64_t kMost = 4;
#endif
  EXPECT_LT(peak_kib(daemon_.pid()), before_kib + kMost * (kBrackets >> 10));
  other->detach();
}

TEST_F(HostileRequests, ShapesThatAreAnothersAreAFailedSaveAndNoFolder) {
  const auto job = start("shapes");
  ASSERT_TRUE(job->step(1).ok());
  checkpoints::Details details;
  details.shapes = {{1}};
  const auto fd = checkpoints::write_details(details);
  ASSERT_TRUE(fd.ok());
  const UniqueFd folder(::open(folder_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  shm::SaveFolder message{};
  message.number = 1;
  message.after_step = 1;
  message.details_bytes = checkpoints::encode_details(details).size();
  shm::set_text(message.name, "a");
  const int fds[] = {folder.get(), fd->get()};
  job->rank(0).send_request(message, fds);
  ASSERT_TRUE(job->rank(0).wait_heard(1).ok());
  EXPECT_EQ(job->rank(0).wait_over(1).code(), Code::kBadInput);
  ASSERT_TRUE(job->step(2).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  job->detach();
}

// A folder of the trainer's own has the tensor with the shape that it asks for.
TEST_F(HostileRequests, ShapesOfALoadThatAreNotTheTablesAreRefusedAndNothingIsRead) {
  const auto larger = start("larger");
  ASSERT_TRUE(larger->step(1).ok());
  const auto numbers = save(*larger, folder_.path(), 1);
  ASSERT_TRUE(larger->rank(0).wait_over(numbers[0]).ok());
  larger->detach();
  FakeModel model = model_;
  for (shm::ParameterPlace& place : model.places) place.numel = 128;
  auto job = FakeJob::attach({.folder = daemon_.folder(), .name = "smaller", .model = model});
  ASSERT_TRUE(job.ok()) << job.status().message();
  checkpoints::Details details;
  for (const shm::ParameterPlace& place : model_.places) {
    details.shapes.push_back({static_cast<int64_t>(place.numel)});
  }
  const auto fd = checkpoints::write_details(details);
  ASSERT_TRUE(fd.ok());
  const std::string path = folder_.path(checkpoints::step_name(1));
  const UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  shm::LoadFolder message{};
  message.number = 1;
  message.states = 1;
  message.details_bytes = checkpoints::encode_details(details).size();
  shm::set_text(message.path, path);
  const int fds[] = {folder.get(), fd->get()};
  (*job)->rank(0).send_request(message, fds);
  const Status heard = (*job)->rank(0).wait_heard(1);
  EXPECT_EQ(heard.code(), Code::kProtocol) << heard.message();
  EXPECT_NE(heard.message().find("elements"), std::string::npos) << heard.message();
  EXPECT_TRUE(daemon_.running());
  (*job)->detach();
}

TEST(SlowDisk, StatusIsAnsweredWhileAStepWaitsForIt) {
  const FakeModel model = make_model(ComputeType::kFp32, 1, 4, kChunkNumel);
  DaemonProcess daemon(quick({"--checkpoint-rate", "50KiB"}));  // four seconds
  const TemporaryFolder folder;
  auto job = FakeJob::start({.folder = daemon.folder(), .model = model});
  ASSERT_TRUE(job.ok()) << job.status().message();
  ASSERT_TRUE((*job)->step(1).ok());
  const auto numbers = save(**job, folder.path(), 1, 0);
  (*job)->post(2);
  EXPECT_TRUE(becomes_true([&] { return (*job)->rank(0).header().committed_step.load() == 2; }));
  const auto status = nlohmann::json::parse(daemon.ask_status(), nullptr, false);
  ASSERT_TRUE(status.is_object());
  EXPECT_EQ((*job)->rank(0).header().finished_step.load(), 1u) << "nothing waited: no test";
  EXPECT_EQ(status["jobs"][0]["checkpoints"]["step"], 1);
  ASSERT_TRUE((*job)->rank(0).wait_over(numbers[0]).ok());
  ASSERT_TRUE((*job)->wait_finished(2).ok());
  (*job)->detach();
}

TEST_F(HostileRequests, WhatWasSavedIsInStatus) {
  const auto job = start("status");
  ASSERT_TRUE(job->step(1).ok());
  EXPECT_EQ(nlohmann::json::parse(daemon_.ask_status())["jobs"][0].count("checkpoints"), 0u);
  const auto numbers = save(*job, folder_.path(), 1);
  ASSERT_TRUE(job->rank(0).wait_over(numbers[0]).ok());
  const auto again = job->rank(0).save(folder_.path(), checkpoints::step_name(1), 1);
  EXPECT_EQ(job->rank(0).wait_over(again).code(), Code::kInvalidArgument) << "the name is taken";
  EXPECT_TRUE(job->rank(0).wait_heard(again).ok()) << "it was taken, and failed before this look";
  const auto saves = nlohmann::json::parse(daemon_.ask_status())["jobs"][0]["checkpoints"];
  EXPECT_EQ(saves["published"], 1);
  EXPECT_EQ(saves["failed"], 1);
  EXPECT_EQ(saves["step"], 1);
  EXPECT_NE(saves["error_last"], "");
  job->detach();
}

}  // namespace
}  // namespace elixir::testing::saves
