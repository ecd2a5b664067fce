/* Functions that the host's code and a device's kernels share. */
#ifndef WN_BASE_BOTH_H
#define WN_BASE_BOTH_H

#ifdef __CUDACC__
#define WN_BOTH static __host__ __device__ __forceinline__
#else
#define WN_BOTH static inline
#endif
/* Inlined in any case: into the loops of a kernel, for its instruction set. */
#define WN_BOTH_INLINE WN_BOTH __attribute__((always_inline))

#endif
