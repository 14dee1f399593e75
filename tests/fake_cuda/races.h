#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>

namespace fake_cuda {

struct Stream;
struct Work;

// Who read and wrote each byte last, and whether what comes next is ordered after that.
//
// Known are the accesses of copies, fills, Elixir's kernels, matrix products, and of what other
// fakes enqueue; not those of torch's own kernels. All functions REQUIRE the runtime's mutex.

// Notes the accesses of a work that has its place in the stream's order, and tells of those that
// are not ordered after an earlier one: two works on the same bytes, one of which writes.
void check_accesses(const Stream& stream, const Work& work);

// The memory has another owner from now on, who is ordered after the last by other means.
void forget_accesses(uintptr_t begin, size_t bytes);

uint64_t races_found();
nlohmann::ordered_json races_json();  // one object for each pair of works and streams

}  // namespace fake_cuda
