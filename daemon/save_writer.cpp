// write_save(): a snapshot becomes a folder.

#include <sys/resource.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <map>
#include <span>

#include "base/clock.h"
#include "base/helper_threads.h"
#include "base/log.h"
#include "base/mutex.h"
#include "checkpoint/file_plan.h"
#include "checkpoint/folder_calls.h"
#include "checkpoint/new_folder.h"
#include "daemon/heap_reserve.h"
#include "daemon/left_out.h"
#include "daemon/pace.h"
#include "daemon/save_parts.h"
#include "daemon/save_run.h"
#include "daemon/saving.h"

namespace elixir::daemon {
namespace {

using checkpoints::FilePlan;
using checkpoints::PlannedTensor;
using checkpoints::StateKind;

constexpr int kNiceness = 10;  // steps go first

class Writer {
 public:
  explicit Writer(Saving& saving) : saving_(saving), pace_(saving.rate_bytes_s) {}

  Status write() {
    ELIXIR_RETURN_IF_ERROR(begin());
    write_chunks();
    if (const Status status = failure(); !status.ok()) return status;
    if (saving_.cancelled.load() || !saving_.snapshot->all_written()) {
      return error(
          Code::kUnavailable,
          "the save was broken off: elixird was stopped, or a rank that keeps states on its "
          "GPU died before it had brought them");
    }
    ELIXIR_RETURN_IF_ERROR(write_scalars());
    ELIXIR_RETURN_IF_ERROR(write_extras());
    return finish();
  }

 private:
  // A chunk that is being written, and how much of it is.
  struct InHand {
    uint32_t chunk = 0;
    uint64_t bytes = 0;
    uint64_t not_finite = 0;  // values
    uint64_t left_out = 0;    // the hash of its parameters, if they are not written
    bool put_back = false;    // to be written again, from its copy
  };

  Status begin() {
    std::vector<checkpoints::ExtraTensor> extras(details().extras.begin(), details().extras.end());
    Result<FilePlan> plan =
        checkpoints::plan_files(saving_.parameters, extras,
                                {.type = saving_.shape.type,
                                 .optimizer_states = saving_.manifest.optimizer_states,
                                 .frozen = !saving_.manifest.left_out.has_value(),
                                 .model = !saving_.manifest.states_alone});
    if (!plan.ok()) return plan.status();
    ELIXIR_RETURN_IF_ERROR(look_at_frozen());
    if (saving_.manifest.states_alone) trained_.emplace(saving_.shape, saving_.parameters);
    plan_ = std::move(*plan);
    chunks_ = parts_by_chunk(plan_, saving_.parameters, saving_.shape);
    saving_.bytes.store(plan_.bytes, std::memory_order_relaxed);
    wake();  // who brings chunks of GPUs waits for the number
    Result<checkpoints::NewFolder> folder = checkpoints::NewFolder::create(
        saving_.parts[0].parent.get(), saving_.name, saving_.manifest.step,
        checkpoints::save_tag(::getpid(), saving_.job_id));
    if (!folder.ok()) return folder.status();
    folder_.emplace(std::move(*folder));
    pieces_.resize(plan_.files.size());
    for (uint32_t file = 0; file < plan_.files.size(); ++file) {
      const Result<int> fd = folder_->create_file(plan_.files[file].name, plan_.files[file].bytes);
      if (!fd.ok()) return fd.status();
      fds_.push_back(*fd);
      Run header{.file = file};
      header.append(std::as_bytes(std::span(plan_.files[file].header)));
      ELIXIR_RETURN_IF_ERROR(write_run(std::move(header)));
    }
    return Status();
  }

  // Once in a run: nothing changes them, but a load.
  Status look_at_frozen() {
    if (!saving_.manifest.left_out || saving_.frozen) return Status();
    std::vector<shm::ParameterPlace> places;
    for (const checkpoints::SavedParameter& parameter : saving_.parameters) {
      places.push_back({parameter.name, parameter.chunk, parameter.offset, parameter.numel});
    }
    saving_.frozen =
        left_out_of(LeftOutKind::kFrozen, saving_.shape, places, saving_.snapshot->slots(),
                    saving_.snapshot->ranks(), saving_.cancelled);
    return saving_.frozen ? Status() : error(Code::kUnavailable, "the save was broken off");
  }

  const checkpoints::Details& details() const { return saving_.parts[0].details; }

  void write_chunks() {
    HelperThreads others;  // each ends with this function
    others.start(std::max(saving_.threads, 1u) - 1, [this] { help(); });
    others.start(1, [this] {
      be_nice();
      saving_.snapshot->take_shadow_memory();
    });
    help();
  }

  // Of this thread alone, on Linux. Advice.
  static void be_nice() { ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness); }

  void help() {
    be_nice();
    try {
      while (const std::optional<Snapshot::Item> item = saving_.snapshot->next()) {
        InHand hand{.chunk = item->chunk};
        const Status status = write_chunk(*item, hand);
        if (!status.ok()) return fail(status);
        // Relaxed: who reads the counts at the end has joined this thread.
        if (hand.put_back) saving_.done_bytes.fetch_sub(hand.bytes, std::memory_order_relaxed);
        if (!hand.put_back) {
          saving_.bad_values.fetch_add(hand.not_finite, std::memory_order_relaxed);
          left_out_.fetch_add(hand.left_out, std::memory_order_relaxed);
        }
        if (hand.put_back || saving_.snapshot->written(item->chunk)) wake();
      }
    } catch (const std::bad_alloc&) {
      note_no_memory();
      fail(no_memory_left());
    }
  }

  void wake() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t wrote = ::write(saving_.wake_fd, &one, sizeof one);
  }

  Status write_chunk(const Snapshot::Item& item, InHand& hand) {
    if (saving_.shape.on_gpu(item.chunk)) ELIXIR_RETURN_IF_ERROR(read_staged(saving_.parts));
    if (trained_) {
      const TrainedValues::Sums sums = trained_->look_at(item);
      hand.left_out = sums.hash;
      hand.not_finite += sums.not_finite;
    }
    Run run;
    uint64_t end = 0;
    for (const PlannedPart& part : chunks_[item.chunk]) {
      if (!run.parts.empty() && (part.file != run.file || part.offset != end)) {
        ELIXIR_RETURN_IF_ERROR(write_run(std::exchange(run, {}), &hand));
        if (hand.put_back) return Status();
      }
      if (run.parts.empty()) run = {.file = part.file, .offset = part.offset};
      append_part(run, part, item);
      end = part.offset + part.bytes;
    }
    return run.parts.empty() ? Status() : write_run(std::move(run), &hand);
  }

  // What each rank keeps of the array, in the order of elements.
  void append_part(Run& run, const PlannedPart& part, const Snapshot::Item& item) const {
    const shm::Shape& shape = saving_.shape;
    const uint64_t element = part.bytes / part.numel;
    const ValueFormat format = counted_format(part.kind, item.chunk);
    for (const Snapshot::Arrays& arrays : item.ranks) {
      const uint64_t shard_begin = shape.shard_begin(arrays.shard);
      const uint64_t begin = std::max(part.first, shard_begin);
      const uint64_t end = std::min(part.first + part.numel, shape.shard_end(arrays.shard));
      if (begin >= end) continue;
      run.append(
          {array_of(arrays, part.kind) + (begin - shard_begin) * element, (end - begin) * element},
          format);
    }
  }

  // Frozen parameters do not change, and their bits may mean something else (shm/load_part.h).
  ValueFormat counted_format(StateKind kind, uint32_t chunk) const {
    if (saving_.shape.frozen(chunk) || kind == StateKind::kMasterLow) return ValueFormat::kNone;
    return kind == StateKind::kParam ? format_of(saving_.shape.type) : ValueFormat::kFp32;
  }

  static const std::byte* array_of(const Snapshot::Arrays& arrays, StateKind kind) {
    switch (kind) {
      case StateKind::kParam:
        return arrays.param;
      case StateKind::kExpAvg:
        return arrays.moments[0];
      case StateKind::kExpAvgSq:
        return arrays.moments[1];
      case StateKind::kMasterLow:
      case StateKind::kMaster:
        return arrays.master;
    }
    return nullptr;
  }

  // In pieces that are hashed. Null: what is written is no chunk's.
  Status write_run(Run run, InHand* hand = nullptr) {
    uint64_t left = run.bytes(), offset = run.offset;
    size_t next = 0;
    while (left > 0) {
      const uint64_t bytes = std::min(left, checkpoints::kMaxPieceBytes);
      ELIXIR_RETURN_IF_ERROR(write_piece(run, &next, {offset, bytes}, hand));
      if (hand != nullptr && hand->put_back) return Status();
      offset += bytes;
      left -= bytes;
    }
    return Status();
  }

  struct Part {
    uint64_t offset, bytes;
  };
  Status write_piece(Run& run, size_t* next, const Part& part, InHand* hand) {
    const auto [offset, bytes] = part;
    const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(),
                                                                        &XXH3_freeState);
    if (hash == nullptr) return error(Code::kResourceExhausted, "no memory for a hash");
    XXH3_64bits_reset(hash.get());
    for (uint64_t at = 0; at < bytes;) {
      if (saving_.cancelled.load(std::memory_order_relaxed)) {
        return error(Code::kUnavailable, "the save was broken off");
      }
      constexpr uint64_t kAtOnce = 4 << 20;  // of the page cache, for the pace to be even
      uint64_t taken = 0, not_finite = 0;
      std::vector<iovec> vectors;
      for (const Values& part : take_front(run.parts, next, std::min(kAtOnce, bytes - at))) {
        not_finite += hash_and_count(part, hash.get());
        taken += part.bytes.size();
        vectors.push_back(vector_of(part));
      }
      pace_.wait(taken, saving_.cancelled);
      ELIXIR_RETURN_IF_ERROR(checkpoints::write_all(fds_[run.file], vectors, offset + at));
      at += taken;
      saving_.done_bytes.fetch_add(taken, std::memory_order_relaxed);
      if (hand == nullptr) continue;
      hand->bytes += taken;
      hand->not_finite += not_finite;
      hand->put_back = saving_.snapshot->put_back_if_wanted(hand->chunk);
      if (hand->put_back) return Status();
    }
    // Its way to the disk begins now, and what is there need not stay in memory: advice.
    ::sync_file_range(fds_[run.file], static_cast<off64_t>(offset), static_cast<off64_t>(bytes),
                      SYNC_FILE_RANGE_WRITE);
    const MutexLock lock(mutex_);
    pieces_[run.file][offset] = checkpoints::Piece{bytes, XXH3_64bits_digest(hash.get())};
    return Status();
  }

  // Those that lie one behind another are one run.
  Status write_scalars() {
    std::vector<FilePlan::Scalar> scalars = plan_.steps;
    std::sort(scalars.begin(), scalars.end(), [](const auto& a, const auto& b) {
      return std::pair(a.file, a.offset) < std::pair(b.file, b.offset);
    });
    std::vector<float> values;
    for (const FilePlan::Scalar& scalar : scalars) {
      values.push_back(static_cast<float>(saving_.updates[scalar.parameter]));
    }
    for (size_t first = 0, end = 0; first < scalars.size(); first = end) {
      for (end = first + 1;
           end < scalars.size() && scalars[end].file == scalars[first].file &&
           scalars[end].offset == scalars[first].offset + (end - first) * sizeof(float);) {
        ++end;
      }
      Run run{.file = scalars[first].file, .offset = scalars[first].offset};
      run.append(std::as_bytes(std::span(values).subspan(first, end - first)));
      ELIXIR_RETURN_IF_ERROR(write_run(std::move(run)));
    }
    return Status();
  }

  Status write_extras() {
    for (const PlannedTensor& tensor : plan_.extras) {
      Run run{.file = tensor.file, .offset = tensor.offset};
      run.append(std::span(details().extras[tensor.parameter].bytes).first(tensor.bytes));
      ELIXIR_RETURN_IF_ERROR(write_run(std::move(run)));
    }
    return Status();
  }

  Status finish() {
    if (!saving_.manifest.states_alone) {
      ELIXIR_RETURN_IF_ERROR(
          folder_->write_file(checkpoints::kIndexName, std::as_bytes(std::span(plan_.index))));
    }
    for (const SavePart& part : saving_.parts) {
      for (const checkpoints::UserFile& file : part.details.files) {
        ELIXIR_RETURN_IF_ERROR(folder_->write_file(file.name, file.bytes));
      }
    }
    checkpoints::Manifest manifest = saving_.manifest;
    if (!manifest.health) manifest.health.emplace();  // a trainer that says nothing of its step
    manifest.health->not_finite = saving_.bad_values.load(std::memory_order_relaxed);
    if (manifest.left_out) {
      manifest.left_out =
          trained_ ? trained_->with(*saving_.frozen, left_out_.load()) : *saving_.frozen;
    }
    for (uint32_t file = 0; file < plan_.files.size(); ++file) {
      checkpoints::ManifestFile& listed = manifest.files.emplace_back();
      listed.name = plan_.files[file].name;
      listed.bytes = plan_.files[file].bytes;
      uint64_t end = 0;
      for (const auto& [offset, piece] : pieces_[file]) {
        if (offset != end) break;
        listed.pieces.push_back(piece);
        end += piece.bytes;
      }
      if (end != listed.bytes) {
        return error(Code::kInternal, "{}: {} of {} bytes were written", listed.name, end,
                     listed.bytes);
      }
    }
    ELIXIR_RETURN_IF_ERROR(folder_->publish(std::move(manifest)));
    prune();
    return Status();
  }

  // It is published: what fails now is no failed save.
  void prune() {
    try {
      const Result<uint32_t> pruned =
          checkpoints::prune(saving_.parts[0].parent.get(), details().keep,
                             checkpoints::step_of_name(saving_.name).value_or(UINT64_MAX));
      if (pruned.ok()) saving_.pruned = *pruned;
      if (!pruned.ok()) {
        log_warn("prune", "job='{}' text='{}'", saving_.job, pruned.status().message());
      }
    } catch (const std::bad_alloc&) {
      log_warn("prune", "job='{}' text='{}'", saving_.job,
               "no memory left to look for checkpoints that are to go: the next save does");
    }
  }

  // Updates that wait for it go on at once, and the other writers end.
  void fail(Status status) {
    {
      const MutexLock lock(mutex_);
      if (failure_.ok()) failure_ = std::move(status);
    }
    saving_.cancelled.store(true);
    saving_.snapshot->end();
    wake();
  }
  Status failure() {
    const MutexLock lock(mutex_);
    return failure_;
  }

  Saving& saving_;
  Pace pace_;
  FilePlan plan_;
  std::vector<std::vector<PlannedPart>> chunks_;
  std::optional<TrainedValues> trained_;  // empty: they are written
  std::atomic<uint64_t> left_out_{0};     // the hash of those that are not, over written chunks
  std::optional<checkpoints::NewFolder> folder_;
  std::vector<int> fds_;  // by file of the plan

  Mutex mutex_;
  Status failure_ ELIXIR_GUARDED_BY(mutex_);
  std::vector<std::map<uint64_t, checkpoints::Piece>> pieces_;  // by file: by offset
};

}  // namespace

void write_save(Saving& saving) {
  try {
    saving.status = Writer(saving).write();
  } catch (const std::bad_alloc&) {
    note_no_memory();
    saving.status = no_memory_left();
  }
  saving.snapshot->end();
  for (SavePart& part : saving.parts) part.close_folder();
  saving.end_ns = monotonic_ns();
}

}  // namespace elixir::daemon
