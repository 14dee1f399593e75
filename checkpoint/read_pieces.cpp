// Of checkpoint/load_plan.h: reading what a plan says, and all of a checkpoint.

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>

#include "base/helper_threads.h"
#include "base/mutex.h"
#include "base/units.h"
#include "checkpoint/load_plan.h"

namespace elixir::checkpoints {
namespace {

constexpr uint64_t kReadBytes = uint64_t{8} << 20;  // so often a reader looks whether it is to stop
constexpr size_t kAlignment = 64;

// A piece, and the file that it is of.
struct ReadJob {
  const StoredFile* file = nullptr;
  const LoadPiece* piece = nullptr;
};

// A buffer whose bytes lie in memory as they do in the file, but for multiples of kAlignment.
class PieceBuffer {
 public:
  bool reserve(uint64_t bytes) {
    memory_.reset(static_cast<std::byte*>(
        ::operator new(bytes + kAlignment, std::align_val_t(kAlignment), std::nothrow)));
    return memory_ != nullptr;
  }
  std::span<std::byte> at(uint64_t offset, uint64_t bytes) {
    return {memory_.get() + offset % kAlignment, bytes};
  }

 private:
  struct Free {
    void operator()(std::byte* bytes) const {
      ::operator delete(bytes, std::align_val_t(kAlignment));
    }
  };
  std::unique_ptr<std::byte, Free> memory_;
};

class PieceReader {
 public:
  PieceReader(const StoredFolder& folder, std::span<const ReadJob> jobs, ReadProgress* progress,
              StateSink* sink)
      : folder_(folder), jobs_(jobs), progress_(progress), sink_(sink) {
    for (const ReadJob& job : jobs) longest_ = std::max(longest_, job.piece->bytes);
  }

  Status read(uint32_t n_threads) {
    HelperThreads others;
    const size_t most = std::min<size_t>(n_threads, jobs_.size());
    others.start(most > 1 ? most - 1 : 0, [this] { work(); });
    work();
    others.join();
    const MutexLock lock(mutex_);
    return status_;
  }

 private:
  void work() {
    try {
      read_some();
    } catch (const std::bad_alloc&) {
      stop(no_memory_left());
    }
  }

  void read_some() {
    PieceBuffer buffer;
    if (!buffer.reserve(longest_)) {
      return stop(error(Code::kResourceExhausted,
                        "{}: no memory for a buffer of {} to read it; use fewer threads",
                        folder_.path, format_bytes(longest_)));
    }
    while (!stopped_.load(std::memory_order_relaxed)) {
      const size_t next = next_.fetch_add(1, std::memory_order_relaxed);
      if (next >= jobs_.size()) return;
      Status status = read_piece(jobs_[next], buffer);
      if (!status.ok()) return stop(std::move(status));
    }
  }

  Status read_piece(const ReadJob& job, PieceBuffer& buffer) {
    const LoadPiece& piece = *job.piece;
    const std::span<std::byte> bytes = buffer.at(piece.offset, piece.bytes);
    for (uint64_t done = 0; done < piece.bytes;) {
      if (stopped_.load(std::memory_order_relaxed)) return Status();
      if (progress_ != nullptr && progress_->cancelled.load(std::memory_order_relaxed)) {
        return error(Code::kUnavailable, "{}: reading it was cancelled", folder_.path);
      }
      const uint64_t now = std::min(kReadBytes, piece.bytes - done);
      const Status status =
          read_bytes(job.file->fd.get(), piece.offset + done, bytes.subspan(done, now));
      if (!status.ok()) return failed(job, status.message());
      done += now;
      if (progress_ != nullptr) progress_->bytes.fetch_add(now, std::memory_order_relaxed);
    }
    // It is read once: what other programs have in the page cache is worth more.
    ::posix_fadvise(job.file->fd.get(), static_cast<off_t>(piece.offset),
                    static_cast<off_t>(piece.bytes), POSIX_FADV_DONTNEED);
    if (piece.xxh3.has_value() && xxh3_of(bytes) != *piece.xxh3) {
      return failed(job,
                    "they are not those that were written: their hash is another; the file is "
                    "damaged, use another checkpoint");
    }
    for (const LoadRange& range : piece.ranges) hand_out(range, bytes);
    return Status();
  }

  void hand_out(const LoadRange& range, std::span<std::byte> bytes) {
    std::span<std::byte> own = bytes.subspan(range.at, range.numel * range.dtype->bytes);
    // A file may have a tensor anywhere. It moves to where its elements may lie, over bytes before
    // it: those were handed out, ranges are in the order of their bytes.
    const auto over = reinterpret_cast<uintptr_t>(own.data()) % range.dtype->bytes;
    std::byte* const aligned = own.data() - over;
    if (over != 0) std::memmove(aligned, own.data(), own.size());
    sink_->take(range, {aligned, own.size()});
  }

  // "FOLDER/FILE: bytes 0 to 100, with tensors 'a', 'b' and 2 more: what".
  Status failed(const ReadJob& job, std::string_view what) const {
    constexpr size_t kNamed = 4;
    const uint64_t begin = job.piece->offset, end = begin + job.piece->bytes;
    std::vector<std::string> names;
    size_t more = 0;
    for (const auto* tensors : {&folder_.model, &folder_.optimizer}) {
      for (const StoredTensor& tensor : *tensors) {
        const uint64_t tensor_end = tensor.offset + (tensor.end - tensor.begin);
        if (&folder_.files[tensor.file] != job.file || tensor.begin == tensor.end) continue;
        if (tensor.offset >= end || tensor_end <= begin) continue;
        if (names.size() == kNamed) ++more;
        if (names.size() < kNamed) names.push_back(fmt::format("'{:.100}'", tensor.name));
      }
    }
    const std::string holds = names.empty()
                                  ? ""
                                  : fmt::format(", with tensor{} {}", names.size() > 1 ? "s" : "",
                                                fmt::join(names, ", "));
    const std::string others = more == 0 ? "" : fmt::format(" and {} more", more);
    return error(Code::kBadInput, "{}/{}: bytes {} to {}{}{}: {}", folder_.path, job.file->name,
                 begin, end, holds, others, what);
  }

  void stop(Status status) {
    const MutexLock lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
    stopped_.store(true, std::memory_order_relaxed);
  }

  const StoredFolder& folder_;
  const std::span<const ReadJob> jobs_;
  ReadProgress* const progress_;
  StateSink* const sink_;
  uint64_t longest_ = 0;

  std::atomic<size_t> next_{0};
  // Relaxed: it says only that no more is to be read; what was said is under the mutex.
  std::atomic<bool> stopped_{false};
  Mutex mutex_;
  Status status_ ELIXIR_GUARDED_BY(mutex_);
};

// Of a file as the manifest has it, one behind another.
void add_pieces(const std::vector<Piece>& pieces, std::vector<LoadPiece>* all) {
  uint64_t offset = 0;
  for (const Piece& piece : pieces) {
    all->push_back({.offset = offset, .bytes = piece.bytes, .xxh3 = piece.xxh3});
    offset += piece.bytes;
  }
}

// The manifest's files without tensors, open.
Result<std::vector<StoredFile>> open_others(const StoredFolder& folder) {
  std::vector<StoredFile> others;
  for (const ManifestFile& listed : folder.manifest->files) {
    const bool open = std::any_of(folder.files.begin(), folder.files.end(),
                                  [&](const StoredFile& file) { return file.name == listed.name; });
    if (open) continue;
    Result<StoredFile> file = open_stored_file(folder, listed.name);
    if (!file.ok()) return file.status();
    file->pieces = listed.pieces;
    others.push_back(std::move(*file));
  }
  return others;
}

}  // namespace

Status read_pieces(const StoredFolder& folder, std::span<const LoadPiece> pieces, uint32_t threads,
                   ReadProgress* progress, StateSink& sink) {
  std::vector<ReadJob> jobs;
  jobs.reserve(pieces.size());
  for (const LoadPiece& piece : pieces) jobs.push_back({&folder.files[piece.file], &piece});
  return PieceReader(folder, jobs, progress, &sink).read(threads);
}

Status verify(const StoredFolder& folder, uint32_t threads, ReadProgress* progress) {
  if (!folder.manifest.has_value()) {
    return error(Code::kBadInput, "{}: it has no {} to compare it with; only checkpoints have one",
                 folder.path, kManifestName);
  }
  const Result<std::vector<StoredFile>> others = open_others(folder);
  if (!others.ok()) return others.status();
  std::vector<const StoredFile*> files;
  std::vector<LoadPiece> pieces;
  for (const auto* list : {&folder.files, &*others}) {
    for (const StoredFile& file : *list) {
      add_pieces(file.pieces, &pieces);
      files.resize(pieces.size(), &file);
    }
  }
  std::vector<ReadJob> jobs;
  for (size_t i = 0; i < pieces.size(); ++i) jobs.push_back({files[i], &pieces[i]});
  return PieceReader(folder, jobs, progress, nullptr).read(threads);
}

}  // namespace elixir::checkpoints
