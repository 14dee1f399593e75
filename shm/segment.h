#pragma once

#include <boost/interprocess/mapped_region.hpp>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "base/fd.h"
#include "base/status.h"

namespace elixir::shm {

// A memfd as Boost.Interprocess wants its mappable objects.
class MemFd {
 public:
  explicit MemFd(UniqueFd fd) : fd_(std::move(fd)) {}
  int get() const { return fd_.get(); }
  boost::interprocess::mapping_handle_t get_mapping_handle() const {
    return boost::interprocess::ipcdetail::mapping_handle_from_file_handle(fd_.get());
  }

 private:
  UniqueFd fd_;
};

enum class Access { kReadWrite, kReadOnly };

// A mapped memfd: the descriptor, to pass on, and the bytes. Not copyable; freed when the last
// process unmaps and closes it, also by SIGKILL.
// Note: docs/design/elixir.md, "sealed memory".
class Segment {
 public:
  // Creates a memfd of `bytes`, maps it read-write, calls `before_reserve(address, bytes)` (where a
  // NUMA policy is set), reserves every page (a lack of memory is an error here, never a SIGBUS
  // later) and seals its size. Uses 2 MiB pages where the system has them free, else asks for
  // transparent ones. Zero-filled.
  static Result<Segment> create(const std::string& name, uint64_t bytes,
                                const std::function<void(void*, uint64_t)>& before_reserve = {});

  // The same in two steps, for large segments that several threads fill: a segment that has its
  // address, its policy and its seals, and no page yet. Nobody may use what is not filled.
  static Result<Segment> create_unfilled(
      const std::string& name, uint64_t bytes,
      const std::function<void(void*, uint64_t)>& before_reserve = {});
  // The same for memory that may never be used: without huge pages, which a mapping takes out of
  // the system's pool whether they are used or not.
  static Result<Segment> create_empty(
      const std::string& name, uint64_t bytes,
      const std::function<void(void*, uint64_t)>& before_reserve = {});
  // Reserves the pages of [offset, offset + bytes); `offset` is a multiple of kFillAlignBytes. Any
  // thread, other ranges at the same time. kResourceExhausted.
  Status fill(uint64_t offset, uint64_t bytes) const;
  static constexpr uint64_t kFillAlignBytes = 2ull << 20;  // the largest page

  // Maps a descriptor that another process created. Refuses one that is smaller than `bytes` or is
  // not sealed against shrinking: its owner could make every access a SIGBUS.
  static Result<Segment> map(UniqueFd fd, uint64_t bytes, Access access);

  Segment(Segment&&) noexcept = default;
  Segment& operator=(Segment&&) noexcept = default;
  ~Segment();

  std::byte* data() const { return static_cast<std::byte*>(region_.get_address()); }
  uint64_t bytes() const { return region_.get_size(); }
  int fd() const { return memfd_.get(); }

  // A descriptor of the same memory that cannot be mapped for writing, to pass on. (A process of
  // the same user can open it anew for writing: this guards against mistakes, not against malice.)
  Result<UniqueFd> read_only_fd() const;

  // From here on nobody can map the memory for writing, write() to it or punch holes into it,
  // through any descriptor, and it takes no more seals. Mappings for writing that are there stay,
  // among them this one. kUnavailable where the kernel does not know that seal (before 5.1).
  Status close_to_new_writers();

  // From here on this process only reads the mapping: a stray write is a SIGSEGV.
  Status protect();

  // For a trainer that may fork: from here on its children have neither the mapping nor the
  // descriptor, so that the memory is free when the trainer has ended, whatever they do. fd() is
  // gone. A child that reads or writes there gets a SIGSEGV.
  void keep_from_children();

  // The page size in use: 2 MiB where huge pages were obtained, else the base page.
  uint64_t page_bytes() const;

 private:
  static Result<Segment> create_filled(unsigned page_flags, const std::string& name, uint64_t bytes,
                                       const std::function<void(void*, uint64_t)>& before_reserve);
  static Result<Segment> create_with(unsigned page_flags, const std::string& name, uint64_t bytes,
                                     const std::function<void(void*, uint64_t)>& before_reserve);

  Segment(MemFd memfd, boost::interprocess::mapped_region region)
      : memfd_(std::move(memfd)), region_(std::move(region)) {}

  MemFd memfd_;
  boost::interprocess::mapped_region region_;
  std::optional<uint32_t> kept_from_forks_;  // forks() at keep_from_children()
};

}  // namespace elixir::shm
