// Products by cuBLASLt, which is opened if it is installed (blas.cu).
#ifndef WN_BACKENDS_CUDA_BLAS_CUH
#define WN_BACKENDS_CUDA_BLAS_CUH

#include "backends/cuda/product.cuh"

// Launches p; false: cuBLASLt does not serve it, and nothing was done. With precision WN_BF16, float operands are first
// rounded into exec->scratch; wn_cuda_blas_scratch gives the bytes.
bool wn_cuda_blas_product(const struct wn_exec *exec, const wn_product &p);
// Scratch for a product of [M,K] and [N,K] with float or bf16 operands.
size_t wn_cuda_blas_scratch(const struct wn_exec *exec, int64_t M, int64_t N, int64_t K, bool a_bf16, bool b_bf16);
// With bf16 products: rounds a float operand [rows,K], which several products share, once into exec->scratch. *x and
// *ld then describe the copy; returns its bytes. 0: nothing was changed.
size_t wn_cuda_blas_rounded(const struct wn_exec *exec, wn_numbers *x, int64_t *ld, int64_t rows, int64_t K);

#endif
