// Products by cuBLASLt, which is opened where it is installed (blas.cu).
#ifndef WN_BACKENDS_CUDA_BLAS_CUH
#define WN_BACKENDS_CUDA_BLAS_CUH

#include "backends/cuda/product.cuh"

// Launches p; false: not by cuBLASLt, and nothing has been done. With the precision WN_BF16, operands that are floats
// are rounded into exec->scratch first, of which wn_cuda_blas_scratch gives the bytes.
bool wn_cuda_blas_product(const struct wn_exec *exec, const wn_product &p);
// Of a product [M,K] by [N,K] whose operands are floats or bf16.
size_t wn_cuda_blas_scratch(const struct wn_exec *exec, int64_t M, int64_t N, int64_t K, bool a_bf16, bool b_bf16);
// Where products are bf16's: an operand [rows,K] of floats that several of them share, rounded once into exec->scratch
// as they would each; *x and *ld are then the copy's, whose bytes are returned. 0: it is as it was.
size_t wn_cuda_blas_rounded(const struct wn_exec *exec, wn_numbers *x, int64_t *ld, int64_t rows, int64_t K);

#endif
