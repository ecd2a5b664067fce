/* Included before every test program of the CUDA backend (CMakeLists.txt). The backend can be given arrays from malloc,
 * calloc or aligned_alloc, and no others. A call gets copies of them in device memory (wn_cuda_memory), emulated or a
 * GPU's, and the host has the results when it returns. A static array or one on the stack fails the test, because no
 * device could read it. */
#ifndef TESTS_CUDA_ARRAYS_H
#define TESTS_CUDA_ARRAYS_H

#include <stddef.h>
#include <stdlib.h>

#include "backends/cuda/attention.h"
#include "backends/cuda/cuda.h"

void *arrays_allocate(size_t alignment, size_t bytes); /* for aligned_alloc */
void *arrays_zeros(size_t count, size_t bytes);
void arrays_free(void *p); /* for free; frees other memory, too */

/* The backend and its functions, on host arrays. */
const struct wn_backend *arrays_backend(void);
const char *arrays_attend_forward(const struct wn_attention *a, void *scratch, int64_t rows, void *stream);
const char *arrays_attend_backward(const struct wn_attention *a, void *scratch, int64_t rows, void *stream);

#ifndef TESTS_CUDA_ARRAYS_INSIDE
#define malloc(bytes) arrays_allocate(16, bytes)
#define calloc(count, bytes) arrays_zeros(count, bytes)
#define aligned_alloc(alignment, bytes) arrays_allocate(alignment, bytes)
#define free(p) arrays_free(p)
#define wn_backend_cuda_table() arrays_backend()
#define wn_cuda_attend_forward(a, scratch, rows, stream) arrays_attend_forward(a, scratch, rows, stream)
#define wn_cuda_attend_backward(a, scratch, rows, stream) arrays_attend_backward(a, scratch, rows, stream)
#endif

#endif
