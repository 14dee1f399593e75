// cuBLAS and cuBLASLt: matrix products take time and their operands are known to be read and
// written, but nothing is computed. Declared here as far as needed: not every CUDA has their
// headers.

#include <library_types.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tests/fake_cuda/call.h"
#include "tests/fake_cuda/settings.h"

namespace fake_cuda {
namespace {

constexpr int kSuccess = 0, kExecutionFailed = 13;  // cublasStatus_t
constexpr int kNoTranspose = 0;                     // cublasOperation_t

struct Handle {
  cudaStream_t stream = nullptr;
};

size_t element_bytes(cudaDataType type) {
  switch (type) {
    case CUDA_R_64F:
      return 8;
    case CUDA_R_32F:
      return 4;
    case CUDA_R_16F:
    case CUDA_R_16BF:
      return 2;
    default:
      return 1;
  }
}

// A matrix by columns, or a batch of them.
struct Matrix {
  const void* memory = nullptr;
  size_t element_bytes = 4;
  int64_t rows = 0, columns = 0, leading = 0;
  int64_t stride = 0, batches = 1;

  size_t bytes() const {
    if (rows == 0 || columns == 0 || batches == 0) return 0;
    const int64_t last = (batches - 1) * stride + (columns - 1) * leading + rows;
    return static_cast<size_t>(std::max<int64_t>(last, 0)) * element_bytes;
  }
  Access read() const { return {reinterpret_cast<uintptr_t>(memory), bytes(), false}; }
  Access written() const { return {reinterpret_cast<uintptr_t>(memory), bytes(), true}; }
};

// As it is stored, where op(matrix) has these rows and columns.
Matrix stored(const void* memory, size_t bytes, int operation, int64_t rows, int64_t columns,
              int64_t leading) {
  if (operation != kNoTranspose) std::swap(rows, columns);
  return {memory, bytes, rows, columns, leading};
}

int enqueue_product(const char* name, cudaStream_t handle, std::vector<Access> accesses) {
  const cudaError_t outcome = call(name, [&](Lock&) {
    Stream* const stream = find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    enqueue(*stream, {.name = "a matrix product",
                      .kind = WorkKind::kGemm,
                      .duration_ns = settings().kernel_ns,
                      .accesses = std::move(accesses),
                      .run = {}});
    count_launch();
    return cudaSuccess;
  });
  return outcome == cudaSuccess ? kSuccess : kExecutionFailed;
}

struct Gemm {
  const char* name;
  int transa, transb;
  int64_t m, n, k;
};

int enqueue_gemm(const Handle* handle, const Gemm& gemm, Matrix a, Matrix b, Matrix c) {
  const Matrix stored_a = stored(a.memory, a.element_bytes, gemm.transa, gemm.m, gemm.k, a.leading);
  const Matrix stored_b = stored(b.memory, b.element_bytes, gemm.transb, gemm.k, gemm.n, b.leading);
  a.rows = stored_a.rows, a.columns = stored_a.columns;
  b.rows = stored_b.rows, b.columns = stored_b.columns;
  c.rows = gemm.m, c.columns = gemm.n;
  return enqueue_product(gemm.name, handle->stream, {a.read(), b.read(), c.written()});
}

Matrix operand(const void* memory, size_t bytes, int64_t leading, int64_t stride = 0,
               int64_t batches = 1) {
  return {memory, bytes, 0, 0, leading, stride, batches};
}

int answer(const char* name) {
  return ask(name, [] { return cudaSuccess; }) == cudaSuccess ? kSuccess : kExecutionFailed;
}

}  // namespace

// ---- handles ----

FAKE_CUDA_API int cublasCreate_v2(void** handle) {
  const cudaError_t outcome = call("cublasCreate", [&](Lock&) {
    *handle = new Handle;
    return cudaSuccess;
  });
  return outcome == cudaSuccess ? kSuccess : kExecutionFailed;
}
FAKE_CUDA_API int cublasDestroy_v2(Handle* handle) {
  delete handle;
  return kSuccess;
}
FAKE_CUDA_API int cublasSetStream_v2(Handle* handle, cudaStream_t stream) {
  handle->stream = stream;
  return kSuccess;
}
FAKE_CUDA_API int cublasSetWorkspace_v2(Handle*, void*, size_t) {
  return answer("cublasSetWorkspace");
}
FAKE_CUDA_API int cublasGetMathMode(Handle*, int* mode) {
  *mode = 0;
  return kSuccess;
}
FAKE_CUDA_API int cublasSetMathMode(Handle*, int) { return kSuccess; }
FAKE_CUDA_API int cublasGetPointerMode_v2(Handle*, int* mode) {
  *mode = 0;
  return kSuccess;
}
FAKE_CUDA_API int cublasSetPointerMode_v2(Handle*, int) { return kSuccess; }

// ---- products ----

FAKE_CUDA_API int cublasGemmEx(Handle* handle, int transa, int transb, int m, int n, int k,
                               const void*, const void* a, cudaDataType type_a, int lda,
                               const void* b, cudaDataType type_b, int ldb, const void*, void* c,
                               cudaDataType type_c, int ldc, int, int) {
  return enqueue_gemm(
      handle, {"cublasGemmEx", transa, transb, m, n, k}, operand(a, element_bytes(type_a), lda),
      operand(b, element_bytes(type_b), ldb), operand(c, element_bytes(type_c), ldc));
}

FAKE_CUDA_API int cublasGemmStridedBatchedEx(Handle* handle, int transa, int transb, int m, int n,
                                             int k, const void*, const void* a, cudaDataType type_a,
                                             int lda, long long stride_a, const void* b,
                                             cudaDataType type_b, int ldb, long long stride_b,
                                             const void*, void* c, cudaDataType type_c, int ldc,
                                             long long stride_c, int batches, int, int) {
  return enqueue_gemm(handle, {"cublasGemmStridedBatchedEx", transa, transb, m, n, k},
                      operand(a, element_bytes(type_a), lda, stride_a, batches),
                      operand(b, element_bytes(type_b), ldb, stride_b, batches),
                      operand(c, element_bytes(type_c), ldc, stride_c, batches));
}

FAKE_CUDA_API int cublasSgemmEx(Handle* handle, int transa, int transb, int m, int n, int k,
                                const float*, const void* a, cudaDataType type_a, int lda,
                                const void* b, cudaDataType type_b, int ldb, const float*, void* c,
                                cudaDataType type_c, int ldc) {
  return enqueue_gemm(
      handle, {"cublasSgemmEx", transa, transb, m, n, k}, operand(a, element_bytes(type_a), lda),
      operand(b, element_bytes(type_b), ldb), operand(c, element_bytes(type_c), ldc));
}

// Of floats and of doubles.
#define FAKE_CUDA_GEMMS(letter, real)                                                             \
  FAKE_CUDA_API int cublas##letter##gemm_v2(                                                      \
      Handle* handle, int transa, int transb, int m, int n, int k, const real*, const real* a,    \
      int lda, const real* b, int ldb, const real*, real* c, int ldc) {                           \
    return enqueue_gemm(handle, {"cublas" #letter "gemm", transa, transb, m, n, k},               \
                        operand(a, sizeof *a, lda), operand(b, sizeof *b, ldb),                   \
                        operand(c, sizeof *c, ldc));                                              \
  }                                                                                               \
  FAKE_CUDA_API int cublas##letter##gemmStridedBatched(                                           \
      Handle* handle, int transa, int transb, int m, int n, int k, const real*, const real* a,    \
      int lda, long long stride_a, const real* b, int ldb, long long stride_b, const real*,       \
      real* c, int ldc, long long stride_c, int batches) {                                        \
    return enqueue_gemm(handle, {"cublas" #letter "gemmStridedBatched", transa, transb, m, n, k}, \
                        operand(a, sizeof *a, lda, stride_a, batches),                            \
                        operand(b, sizeof *b, ldb, stride_b, batches),                            \
                        operand(c, sizeof *c, ldc, stride_c, batches));                           \
  }
FAKE_CUDA_GEMMS(S, float)
FAKE_CUDA_GEMMS(D, double)

// Products whose operands are not looked at. All begin with the handle.
#define FAKE_CUDA_PRODUCT(name) \
  FAKE_CUDA_API int name(Handle* handle) { return enqueue_product(#name, handle->stream, {}); }
FAKE_CUDA_PRODUCT(cublasSgemv_v2)
FAKE_CUDA_PRODUCT(cublasDgemv_v2)
FAKE_CUDA_PRODUCT(cublasDotEx)
FAKE_CUDA_PRODUCT(cublasSdot_v2)
FAKE_CUDA_PRODUCT(cublasDdot_v2)

// ---- cuBLASLt ----

namespace {

// CUBLASLT_MATRIX_LAYOUT_*, whose order is that of the attributes.
enum LayoutAttribute { kType, kOrder, kRows, kColumns, kLeading, kBatches, kStride };
constexpr int kBiasPointer = 8;  // CUBLASLT_MATMUL_DESC_BIAS_POINTER

struct LtLayout {
  cudaDataType type = CUDA_R_32F;
  int64_t rows = 0, columns = 0, leading = 0, stride = 0;
  int32_t batches = 1;

  Matrix at(const void* memory) const {
    return {memory, element_bytes(type), rows, columns, leading, stride, batches};
  }
};

struct LtProduct {
  const void* bias = nullptr;
};

template <class T>
void read_value(T& value, const void* from, size_t bytes) {
  std::memcpy(&value, from, std::min(bytes, sizeof value));
}

}  // namespace

FAKE_CUDA_API size_t cublasLtGetVersion() { return 130100; }

FAKE_CUDA_API int cublasLtMatrixLayoutCreate(LtLayout** layout, cudaDataType type, uint64_t rows,
                                             uint64_t columns, int64_t leading) {
  *layout = new LtLayout{.type = type,
                         .rows = static_cast<int64_t>(rows),
                         .columns = static_cast<int64_t>(columns),
                         .leading = leading};
  return kSuccess;
}
FAKE_CUDA_API int cublasLtMatrixLayoutDestroy(LtLayout* layout) {
  delete layout;
  return kSuccess;
}
FAKE_CUDA_API int cublasLtMatrixLayoutSetAttribute(LtLayout* layout, int which, const void* value,
                                                   size_t bytes) {
  if (which == kBatches) read_value(layout->batches, value, bytes);
  if (which == kStride) read_value(layout->stride, value, bytes);
  if (which == kLeading) read_value(layout->leading, value, bytes);
  return kSuccess;
}

FAKE_CUDA_API int cublasLtMatmulDescCreate(LtProduct** product, int, cudaDataType) {
  *product = new LtProduct;
  return kSuccess;
}
FAKE_CUDA_API int cublasLtMatmulDescDestroy(LtProduct* product) {
  delete product;
  return kSuccess;
}
FAKE_CUDA_API int cublasLtMatmulDescSetAttribute(LtProduct* product, int which, const void* value,
                                                 size_t bytes) {
  if (which == kBiasPointer) read_value(product->bias, value, bytes);
  return kSuccess;
}

FAKE_CUDA_API int cublasLtMatmulPreferenceCreate(int** preference) {
  *preference = new int(0);
  return kSuccess;
}
FAKE_CUDA_API int cublasLtMatmulPreferenceDestroy(int* preference) {
  delete preference;
  return kSuccess;
}
FAKE_CUDA_API int cublasLtMatmulPreferenceSetAttribute(int*, int, const void*, size_t) {
  return kSuccess;
}

FAKE_CUDA_API int cublasLtMatmulAlgoGetHeuristic(void*, LtProduct*, LtLayout*, LtLayout*, LtLayout*,
                                                 LtLayout*, int*, int, void* results, int* found) {
  constexpr size_t kResultBytes = 96;  // cublasLtMatmulHeuristicResult_t; zero is success
  std::memset(results, 0, kResultBytes);
  *found = 1;
  return kSuccess;
}

FAKE_CUDA_API int cublasLtMatmul(void*, LtProduct* product, const void*, const void* a,
                                 LtLayout* layout_a, const void* b, LtLayout* layout_b, const void*,
                                 const void*, LtLayout*, void* d, LtLayout* layout_d, const void*,
                                 void*, size_t, cudaStream_t stream) {
  const Matrix result = layout_d->at(d);
  std::vector<Access> accesses = {layout_a->at(a).read(), layout_b->at(b).read(), result.written()};
  if (product->bias != nullptr) {
    accesses.push_back({reinterpret_cast<uintptr_t>(product->bias),
                        static_cast<size_t>(result.rows) * result.element_bytes, false});
  }
  return enqueue_product("cublasLtMatmul", stream, std::move(accesses));
}

}  // namespace fake_cuda
