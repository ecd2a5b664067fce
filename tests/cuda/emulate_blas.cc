/* cuBLASLt's products in plain C++. An algorithm is valid only for the shapes for which it was requested: other shapes,
 * addresses with less alignment, and a smaller workspace are refused. If the preference allows sums in the compute
 * type, long products are computed in parts of K whose sums go through the workspace, like split-K algorithms. */
#include "cuda/emulate_blas.h"

#include <vector>

#include "cuda/emulate_queue.h"

struct emulated_blas {
  int unused;
};
struct emulated_matmul {
  cublasComputeType_t compute;
  cudaDataType scale;
  cublasOperation_t a, b;
  cublasLtEpilogue_t end;
  const void *bias;
};
struct emulated_layout {
  cudaDataType type;
  uint64_t rows, cols;
  int64_t ld;
};
struct emulated_preference {
  size_t work;
  uint32_t schemes, a, b, c, d;
};

namespace emulate {

enum { PART = 96 }; /* the length of a part of K */
static emulated_blas the_blas;
static uint64_t asked, made;

/* What an algorithm was made for. */
struct blas_algorithm {
  uint64_t form, parts, a, b, c;
};

static uint64_t form_of(const emulated_matmul *m, const emulated_layout *a, const emulated_layout *b,
                        const emulated_layout *c) {
  uint64_t hash = (uint64_t)m->compute;
  for (const uint64_t n :
       {(uint64_t)m->a, (uint64_t)m->b, (uint64_t)m->end, (uint64_t)a->type, a->rows, a->cols, (uint64_t)a->ld,
        (uint64_t)b->type, b->rows, b->cols, (uint64_t)b->ld, (uint64_t)c->type, c->rows, c->cols, (uint64_t)c->ld})
    hash = (hash + n) * 0x9E3779B97F4A7C15u;
  return hash;
}

static uint64_t rows_of(const emulated_layout *l, cublasOperation_t op) {
  return op == CUBLAS_OP_N ? l->rows : l->cols;
}
static uint64_t cols_of(const emulated_layout *l, cublasOperation_t op) {
  return op == CUBLAS_OP_N ? l->cols : l->rows;
}

static bool form_is_sound(const emulated_matmul *m, const emulated_layout *a, const emulated_layout *b,
                          const emulated_layout *c, const emulated_layout *d) {
  const bool types = (a->type == CUDA_R_32F && c->type == CUDA_R_32F) ||
                     (a->type == CUDA_R_16BF && (c->type == CUDA_R_32F || c->type == CUDA_R_16BF));
  return types && a->type == b->type && c->type == d->type && c->rows == d->rows && c->cols == d->cols &&
         cols_of(a, m->a) == rows_of(b, m->b) && rows_of(a, m->a) == d->rows && cols_of(b, m->b) == d->cols &&
         m->compute == CUBLAS_COMPUTE_32F && m->scale == CUDA_R_32F;
}

static float number(const void *p, const emulated_layout *l, uint64_t row, uint64_t col) {
  const uint64_t at = row + col * (uint64_t)l->ld;
  return l->type == CUDA_R_32F ? static_cast<const float *>(p)[at] : bf16_value(static_cast<const uint16_t *>(p)[at]);
}

static bool lies_in_array(const void *p, const emulated_layout *l) {
  const uint64_t size = l->type == CUDA_R_32F ? 4 : 2;
  return is_array(p, (size_t)((((l->cols - 1) * (uint64_t)l->ld) + l->rows) * size));
}

} // namespace emulate

using namespace emulate;

uint64_t wn_emulate_products(uint64_t *algorithms) {
  streams_finish();
  *algorithms = asked;
  return made;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
  *out = &the_blas;
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() {
  return 130000;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType scale) {
  *out = new emulated_matmul{compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  return CUBLAS_STATUS_SUCCESS;
}

template <class T> static cublasStatus_t take(T *to, const void *value, size_t bytes) {
  if (bytes != sizeof *to) return CUBLAS_STATUS_INVALID_VALUE;
  memcpy(to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what,
                                              const void *value, size_t bytes) {
  switch (what) {
  case CUBLASLT_MATMUL_DESC_TRANSA:
    return take(&desc->a, value, bytes);
  case CUBLASLT_MATMUL_DESC_TRANSB:
    return take(&desc->b, value, bytes);
  case CUBLASLT_MATMUL_DESC_EPILOGUE:
    return take(&desc->end, value, bytes);
  case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
    return take(&desc->bias, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows, uint64_t cols,
                                          int64_t ld) {
  if (rows < 1 || cols < 1 || ld < (int64_t)rows) return CUBLAS_STATUS_INVALID_VALUE;
  *out = new emulated_layout{type, rows, cols, ld};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
  *out = new emulated_preference{0, 7, 256, 256, 256, 256};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t what, const void *value,
                                                    size_t bytes) {
  switch (what) {
  case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
    return take(&p->work, value, bytes);
  case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
    return take(&p->schemes, value, bytes);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    return take(&p->a, value, bytes);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    return take(&p->b, value, bytes);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    return take(&p->c, value, bytes);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
    return take(&p->d, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

/* Gives no algorithm if a bf16 row is not a whole number of words, as real ones refuse odd sizes. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t p, int wanted,
                                              cublasLtMatmulHeuristicResult_t *results, int *found) {
  *found = 0;
  if (handle != &the_blas || wanted < 1 || !form_is_sound(desc, a, b, c, d)) return CUBLAS_STATUS_INVALID_VALUE;
  asked++;
  if (a->type == CUDA_R_16BF && (p->a < 4 || p->b < 4)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const uint64_t K = cols_of(a, desc->a), need = d->rows * d->cols * sizeof(float);
  const bool split = K > PART && p->schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE && need <= p->work;
  const blas_algorithm algorithm = {form_of(desc, a, b, c), split ? (K + PART - 1) / PART : 1, p->a, p->b, p->c};
  results[0] = {};
  static_assert(sizeof algorithm <= sizeof results[0].algo, "fits");
  memcpy(&results[0].algo, &algorithm, sizeof algorithm);
  results[0].workspaceSize = split ? need : 0;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

static void multiply(const emulated_matmul *m, const void *A, const emulated_layout *a, const void *B,
                     const emulated_layout *b, float alpha, float beta, const void *C, void *D,
                     const emulated_layout *d, uint64_t parts, float *work) {
  const uint64_t K = cols_of(a, m->a), each = parts > 1 ? (uint64_t)PART : K;
  for (uint64_t part = 0; part < parts; part++)
    for (uint64_t j = 0; j < d->cols; j++)
      for (uint64_t i = 0; i < d->rows; i++) {
        float sum = 0;
        for (uint64_t k = part * each; k < K && k < (part + 1) * each; k++)
          sum += (m->a == CUBLAS_OP_N ? number(A, a, i, k) : number(A, a, k, i)) *
                 (m->b == CUBLAS_OP_N ? number(B, b, k, j) : number(B, b, j, k));
        if (parts > 1) {
          float *kept = work + i + j * d->rows;
          sum = *kept = part ? *kept + sum : sum;
        }
        if (part + 1 < parts) continue;
        float value = alpha * sum;
        if (beta != 0) value += beta * number(C, d, i, j);
        if (m->end == CUBLASLT_EPILOGUE_BIAS) value += static_cast<const float *>(m->bias)[i];
        const uint64_t at = i + j * (uint64_t)d->ld;
        if (d->type == CUDA_R_32F)
          static_cast<float *>(D)[at] = value;
        else
          static_cast<uint16_t *>(D)[at] = bf16_bits(value);
      }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *A,
                              cublasLtMatrixLayout_t a, const void *B, cublasLtMatrixLayout_t b, const void *beta,
                              const void *C, cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algorithm, void *work, size_t work_bytes,
                              cudaStream_t stream) {
  blas_algorithm chosen;
  float alpha_value, beta_value;
  memcpy(&chosen, algorithm, sizeof chosen);
  memcpy(&alpha_value, alpha, sizeof alpha_value);
  memcpy(&beta_value, beta, sizeof beta_value);
  if (handle != &the_blas || !stream_check(site::here(), stream) || !form_is_sound(desc, a, b, c, d) ||
      chosen.form != form_of(desc, a, b, c) || (uintptr_t)A % chosen.a || (uintptr_t)B % chosen.b ||
      (uintptr_t)C % chosen.c || (uintptr_t)D % chosen.c || (c != d && C == D))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (chosen.parts > 1 && (work_bytes < d->rows * d->cols * sizeof(float) || !is_array(work, work_bytes)))
    return CUBLAS_STATUS_INVALID_VALUE;
  const bool bias = desc->end == CUBLASLT_EPILOGUE_BIAS;
  if (bias && (d->type != CUDA_R_32F || !is_array(desc->bias, d->rows * sizeof(float))))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!lies_in_array(A, a) || !lies_in_array(B, b) || !lies_in_array(D, d)) return CUBLAS_STATUS_INVALID_VALUE;
  const emulated_matmul call = *desc;
  const emulated_layout la = *a, lb = *b, ld = *d;
  const auto run = [=] {
    made++;
    memory_open(true);
    multiply(&call, A, &la, B, &lb, alpha_value, beta_value, C, D, &ld, chosen.parts, static_cast<float *>(work));
    memory_open(false);
  };
  stream_add(stream, run);
  return CUBLAS_STATUS_SUCCESS;
}
