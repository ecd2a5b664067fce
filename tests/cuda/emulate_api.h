/* How tests control the emulated GPU (emulate.h), and what it reports. */
#ifndef TESTS_CUDA_EMULATE_API_H
#define TESTS_CUDA_EMULATE_API_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* False on a GPU (tests/cuda/on_device.c), where a test cannot choose the order of threads. */
bool wn_emulated(void);
/* The order of a launch's blocks, of a block's threads between two barriers, and of several streams' work. 0: as
 * numbered, and as submitted. */
void wn_emulate_seed(uint64_t seed);
/* The device: its major compute capability (default 8) and how many blocks run at once (default 3). */
void wn_emulate_device(int capability, int processors);
/* The error of a launch since the last call: one line, or NULL. */
const char *wn_emulate_error(void);
/* Launches since the start. Then: arrays, pinned memory, streams and events made or released (emulation only). */
uint64_t wn_emulate_launches(void);
/* Launches since the start from one source file, such as "run.cuh". */
uint64_t wn_emulate_launches_in(const char *file);
uint64_t wn_emulate_allocations(void);
/* Calls that submitted work since the start: single kernels, graphs, graph nodes whose arguments were changed, copies,
 * events recorded, waits of a stream for an event. */
typedef struct {
  uint64_t kernels, graphs, nodes, copies, events, waits;
} wn_emulated_calls;
wn_emulated_calls wn_emulate_calls(void);
/* cuBLASLt products since the start, and how often an algorithm was requested. */
uint64_t wn_emulate_products(uint64_t *algorithms);

#ifdef __cplusplus
}
#endif

#endif
