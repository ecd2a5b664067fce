/* Runs parallel regions that gcc compiles on winnow's own threads (regions.c). CMake includes this file before every
 * source. gcc turns `#pragma omp` into calls of its OpenMP library; here those names are redirected to our functions,
 * within the object file only, so that a program that embeds winnow keeps its own OpenMP and its settings. A construct
 * that regions.c does not implement keeps gcc's name, and tools/check-layers then finds that name in the library.
 *
 * clang's OpenMP has another interface (libomp) and is used as it is. */
#ifndef WN_BASE_REGIONS_H
#define WN_BASE_REGIONS_H

#if defined(_OPENMP) && defined(__GNUC__) && !defined(__clang__)
#define WN_REGIONS 1
__asm__("GOMP_parallel = wn_region_run\n"
        "GOMP_barrier = wn_region_barrier\n"
        "GOMP_single_start = wn_region_single\n"
        "GOMP_critical_start = wn_region_critical\n"
        "GOMP_critical_end = wn_region_critical_end\n"
        "GOMP_critical_name_start = wn_region_critical_name\n"
        "GOMP_critical_name_end = wn_region_critical_name_end\n"
        "GOMP_loop_dynamic_start = wn_region_loop\n"
        "GOMP_loop_dynamic_next = wn_region_loop_next\n"
        "GOMP_loop_nonmonotonic_dynamic_start = wn_region_loop\n"
        "GOMP_loop_nonmonotonic_dynamic_next = wn_region_loop_next\n"
        "GOMP_loop_end = wn_region_loop_end\n"
        "GOMP_loop_end_nowait = wn_region_loop_end_nowait\n"
        "GOMP_parallel_loop_dynamic = wn_region_run_loop\n"
        "GOMP_parallel_loop_nonmonotonic_dynamic = wn_region_run_loop\n"
        "omp_get_thread_num = wn_region_thread\n"
        "omp_get_num_threads = wn_region_threads\n");

#include <stdbool.h>

/* The functions that gcc calls; regions.c says what each does. For the types see the chapter "The libgomp ABI" of the
 * libgomp manual. */
void wn_region_run(void (*fn)(void *), void *data, unsigned threads, unsigned flags);
void wn_region_run_loop(void (*fn)(void *), void *data, unsigned threads, long from, long to, long step, long chunk,
                        unsigned flags);
int wn_region_thread(void);
int wn_region_threads(void);
void wn_region_barrier(void);
bool wn_region_single(void);
bool wn_region_loop(long from, long to, long step, long chunk, long *first, long *end);
bool wn_region_loop_next(long *first, long *end);
void wn_region_loop_end(void);
void wn_region_loop_end_nowait(void);
void wn_region_critical(void);
void wn_region_critical_end(void);
void wn_region_critical_name(void **lock);
void wn_region_critical_name_end(void **lock);
#endif

#endif
