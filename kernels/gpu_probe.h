#pragma once

/* Describes this machine's GPUs to a program without CUDA. The function is in libelixir_cuda.so.
 * Plain C: a caller finds it with dlsym and needs nothing else of CUDA, torch or Elixir's types. */

#include <stddef.h>

#include "base/export.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ELIXIR_GPU_PROBE_FUNCTION "elixir_gpu_probe"

/* Looks at every visible GPU and times copies of `copy_bytes` (0: no copies): each way, and both
 * ways at once. This takes a few tenths of a second per GPU. The copies use memory as a trainer
 * shares it with elixird, page-locked if possible. Writes one JSON object and a terminating 0 to
 * `buffer`, cut off at buffer_bytes. Returns the bytes of the whole object without the 0. Failures
 * stand in the object:
 *
 *   {"driver": "13.0", "runtime": "13.0", "nccl": "2.28.9", "torch": "2.11.0",
 *    "error": "",            why there is no GPU, with the remedy; "" when there is one
 *    "gpus": [{"index": 0, "name": "...", "memory_bytes": 0, "free_bytes": 0,
 *              "pci_address": "0000:c1:00.0", "numa_node": 0, "uuid": "GPU-...",
 *              "compute_capability": "9.0",
 *              "read_only_pinning": true,          of read-only mappings; Elixir needs none
 *              "pinning_error": "", "error": "",   "" if all went well
 *              "h2d_gb_s": 0.0, "d2h_gb_s": 0.0, "both_gb_s": 0.0}]}   1e9 bytes/s; both: the sum
 */
ELIXIR_PUBLIC size_t elixir_gpu_probe(char* buffer, size_t buffer_bytes, size_t copy_bytes);
typedef size_t ElixirGpuProbe(char* buffer, size_t buffer_bytes, size_t copy_bytes);

#ifdef __cplusplus
}
#endif
