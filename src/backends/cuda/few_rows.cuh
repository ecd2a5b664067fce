// A few rows of x times quantised weights, and rows of them unpacked (matvec.cu).
#ifndef WN_BACKENDS_CUDA_FEW_ROWS_CUH
#define WN_BACKENDS_CUDA_FEW_ROWS_CUH

#include "backends/cuda/launch.cuh"

// y[m,n] = w_n . x_m + b[n] (+ y) for M rows of x and the part's rows, in launches of up to 16 rows of x. Each row
// has the same bits as alone. False: the alignment of blocks or of x does not allow it.
bool wn_cuda_few_rows(const struct wn_exec *exec, const struct wn_packed_part *part, int64_t M, int64_t K,
                      const float *x, int64_t ldx, const float *b, float *y, int64_t ldy, bool accumulate);

// Rows first to first + rows - 1 of the part as bf16, out [rows,K]: wn_packed_element's floats, rounded. False: the
// alignment of blocks or of out does not allow it.
bool wn_cuda_unpack(const struct wn_exec *exec, const struct wn_packed_part *part, int64_t first, int64_t rows,
                    int64_t K, void *out);

#endif
