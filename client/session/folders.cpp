// Requests for folders: elixird writes the states into one, or reads them from one.

#include "client/session/folders.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "client/session/session.h"
#include "shm/attach_socket.h"
#include "shm/futex.h"

namespace elixir {
namespace {

constexpr double kWaitSliceSeconds = 0.05;  // how soon a death is noticed

struct DetailsFile {
  UniqueFd fd;
  uint64_t bytes = 0;
};

Result<DetailsFile> details_file(const checkpoints::Details& details) {
  Result<UniqueFd> fd = checkpoints::write_details(details);
  if (!fd.ok()) return fd.status();
  struct stat seen {};
  if (::fstat(fd->get(), &seen) != 0) {
    return errno_status(Code::kInternal, "fstat of a checkpoint's details");
  }
  return DetailsFile{std::move(*fd), static_cast<uint64_t>(seen.st_size)};
}

Status check_fits(const std::string& text, size_t room, const char* what) {
  if (text.size() < room) return Status();
  return error(Code::kInvalidArgument, "{} '{:.60}...' has {} bytes; {} are possible", what, text,
               text.size(), room - 1);
}

}  // namespace

shm::FolderResult& Session::folder_record(uint32_t number) const {
  auto* results =
      reinterpret_cast<shm::FolderResult*>(control_->data() + shape_.folder_results_offset());
  return results[number % shm::kFolderRing];
}

// Updates may wait for a disk as long as that takes.
bool Session::folder_under_way() const {
  return header().ended_request.load(std::memory_order_relaxed) <
         requests_.load(std::memory_order_relaxed);
}

Result<uint32_t> Session::next_request() {
  const uint32_t number = requests_ + 1;
  while (number >= shm::kFolderRing) {  // so many results are kept
    const Result<bool> ended = folder_ended_within(number - (shm::kFolderRing - 1), 1);
    if (!ended.ok()) return ended.status();
    if (*ended) break;
  }
  return number;
}

// elixird keeps one save that waits. Where that waits for one under way, it drops what may be
// dropped.
Status Session::await_turn(const FolderToSave& save) {
  const uint32_t last = requests_;
  if (last == 0) return Status();
  const uint32_t ended = header().ended_request.load(std::memory_order_acquire);
  return save.drop_if_busy && ended + 1 < last ? Status() : await_begun(last);
}

// The request is sent; returns how elixird took it.
Status Session::await_heard(uint32_t number) {
  requests_ = number;
  ELIXIR_RETURN_IF_ERROR(whole("a request for a folder", [&] {
    return wait_word({header().heard_request, header().waiters, number,
                      "elixird, or other ranks, to come to a request for a folder",
                      shape_.ranks == 1 ? kNobodyElse : kOtherRanks});
  }));
  const FolderOutcome outcome = folder_result(number);
  return outcome.refused ? outcome.status : Status();
}

Result<uint32_t> Session::save_folder(const FolderToSave& save) {
  shm::SaveFolder message{};
  ELIXIR_RETURN_IF_ERROR(check_fits(save.name, sizeof message.name, "a checkpoint's name"));
  const Result<DetailsFile> details = details_file(save.details);
  if (!details.ok()) return details.status();
  ELIXIR_RETURN_IF_ERROR(await_turn(save));
  const Result<uint32_t> number = next_request();
  if (!number.ok()) return number.status();
  message.number = *number;
  message.after_step = save.after_step;
  message.details_bytes = details->bytes;
  message.drop_if_busy = save.drop_if_busy ? 1 : 0;
  shm::set_text(message.name, save.name);
  std::vector<int> fds = {save.parent, details->fd.get()};
  UniqueFd staging;
  if (save.staging != nullptr) {
    Result<UniqueFd> read_only = save.staging->read_only_fd();
    if (!read_only.ok()) return read_only.status();
    staging = std::move(*read_only);
    fds.push_back(staging.get());
    message.flags |= shm::kHasStaging;
  }
  if (save.lock >= 0) {
    fds.push_back(save.lock);
    message.flags |= shm::kHasLock;
  }
  ELIXIR_RETURN_IF_ERROR(shm::send_message(attach_socket_.get(), message, fds));
  ELIXIR_RETURN_IF_ERROR(await_heard(*number));
  return *number;
}

// elixird says how many bytes there will be when it has begun.
Status Session::await_begun(uint32_t number) {
  constexpr double kLookSeconds = 0.001;
  while (folder_progress(number).bytes == 0) {
    const Result<bool> ended = folder_ended_within(number, kLookSeconds);
    if (!ended.ok()) return ended.status();
    if (*ended) break;
  }
  return Status();
}

Status Session::stage_chunk(uint32_t number, uint32_t chunk) {
  ELIXIR_CHECK(shape_.on_gpu(chunk), "chunk {} is elixird's", chunk);
  shm::StagedChunk doorbell{};
  doorbell.number = number;
  doorbell.chunk = chunk;
  // One is under way at a time; of a save that failed one may never have been taken.
  const uint32_t taken = header().staged_taken.load(std::memory_order_acquire);
  ELIXIR_RETURN_IF_ERROR(ring(doorbell));
  Wait wait{header().staged_taken, header().waiters, taken + 1,
            "elixird to take a chunk of the GPU's that is to be saved", kOtherRanks};
  wait.or_ended = number;
  return whole("save()", [&] { return wait_word(wait); });
}

Result<uint32_t> Session::load_folder(const FolderToLoad& load) {
  shm::LoadFolder message{};
  const Result<DetailsFile> details = details_file(load.details);
  if (!details.ok()) return details.status();
  const Result<uint32_t> number = next_request();
  if (!number.ok()) return number.status();
  message.number = *number;
  message.states = load.states ? 1 : 0;
  message.details_bytes = details->bytes;
  shm::set_text(message.path, load.path.substr(0, sizeof message.path - 1));
  const int fds[] = {load.folder, details->fd.get()};
  ELIXIR_RETURN_IF_ERROR(shm::send_message(attach_socket_.get(), message, fds));
  ELIXIR_RETURN_IF_ERROR(await_heard(*number));
  return *number;
}

Result<bool> Session::folder_ended_within(uint32_t number, double seconds) {
  const std::atomic<uint32_t>& word = header().ended_request;
  const shm::Waiter sleeps(header().waiters);
  for (const int64_t start_ns = monotonic_ns();;) {
    // Acquire: pairs with elixird's release after it wrote the result.
    const uint32_t seen = word.load(std::memory_order_acquire);
    if (seen >= number) return true;
    ELIXIR_RETURN_IF_ERROR(seconds > 0 ? check_wait() : check_alive());
    const double left_s = seconds - seconds_since(start_ns);
    if (left_s <= 0) return false;
    (void)shm::futex_wait(word, seen,
                          static_cast<int64_t>(std::min(left_s, kWaitSliceSeconds) * 1e9));
  }
}

FolderOutcome Session::folder_result(uint32_t number) const {
  const shm::FolderResult& record = folder_record(number);
  FolderOutcome outcome;
  if (record.number != number) {
    outcome.refused = true;
    outcome.status = error(Code::kInternal, "the result of request {} for a folder is that of {}",
                           number, record.number);
    return outcome;
  }
  if (record.code != 0) {
    outcome.status =
        Status(static_cast<Code>(record.code), std::string(shm::get_text(record.text)));
  }
  outcome.refused = record.refused != 0;
  outcome.step = record.step;
  outcome.bytes = record.bytes.load(std::memory_order_relaxed);
  outcome.shadow_bytes = record.shadow_bytes;
  outcome.shadow_peak_bytes = record.shadow_peak_bytes;
  outcome.stall_ns = record.stall_ns;
  outcome.write_ns = record.write_ns;
  outcome.not_finite = record.not_finite;
  return outcome;
}

FolderProgress Session::folder_progress(uint32_t number) const {
  const shm::FolderResult& record = folder_record(number);
  if (record.number != number) return {};
  return {record.bytes.load(std::memory_order_relaxed),
          record.done_bytes.load(std::memory_order_relaxed)};
}

}  // namespace elixir
