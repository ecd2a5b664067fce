/* What a test says to the emulation of a GPU (emulate.h), and hears from it. */
#ifndef TESTS_CUDA_EMULATE_API_H
#define TESTS_CUDA_EMULATE_API_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Whether there is an emulation: on a GPU (tests/cuda/on_device.c) an order of threads is no choice. */
bool wn_emulated(void);
/* The order of the blocks of a launch and, between two barriers, of the threads of a block, and of the work of several
 * streams. 0: as they are numbered, and as it was asked for. */
void wn_emulate_seed(uint64_t seed);
/* The device: its major compute capability (8 at first) and how many blocks run at once (3). */
void wn_emulate_device(int capability, int processors);
/* What went wrong in a launch since it was last asked: one line, or NULL. */
const char *wn_emulate_error(void);
/* Launches since the start; and arrays, pinned memory, streams and events that were made or given back; of an
 * emulation alone. */
uint64_t wn_emulate_launches(void);
/* Launches since the start that stand in a source file: "run.cuh". */
uint64_t wn_emulate_launches_in(const char *file);
uint64_t wn_emulate_allocations(void);
/* Calls of the run time that ask for work, since the start: kernels one by one, graphs, nodes of graphs whose arguments
 * were changed, copies, marks, streams that wait for one. */
typedef struct {
  uint64_t kernels, graphs, nodes, copies, events, waits;
} wn_emulated_calls;
wn_emulated_calls wn_emulate_calls(void);
/* Products by cuBLASLt since the start, and how often it was asked for an algorithm. */
uint64_t wn_emulate_products(uint64_t *algorithms);

#ifdef __cplusplus
}
#endif

#endif
