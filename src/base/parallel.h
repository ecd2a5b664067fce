/* Work that several threads share (parallel.c says whose they are, and how they wait).
 *
 * A region runs one function in several hands: the calling thread is hand 0, the others are threads of the library.
 * There may be fewer hands than asked for (wn_hands), and one thread may be several hands, one after the other, unless
 * the region has a barrier. A region inside a region has one hand. What the functions read and write they find through
 * `arg`, which must stay until the region ends, and which they get as it is given (they may write to what it points to
 * where the caller may). */
#ifndef WN_BASE_PARALLEL_H
#define WN_BASE_PARALLEL_H

#include <stdbool.h>
#include <stdint.h>

/* fn(arg) in `threads` hands. Returns when all have ended. */
void wn_parallel(int threads, void (*fn)(void *arg), const void *arg);

/* fn(arg, i) for i = 0..n-1. Each hand has consecutive i, and they differ by one in number at most, the first hands
 * having the more (OpenMP's static schedule). */
void wn_parallel_for(int threads, int64_t n, void (*fn)(void *arg, int64_t i), const void *arg);

/* The same for i that differ in work: a hand takes one after the other (OpenMP's dynamic schedule). */
void wn_parallel_tasks(int threads, int64_t n, void (*fn)(void *arg, int64_t i), const void *arg);

/* fn(arg, from, to) once for each hand: 0..n-1 is divided as for wn_parallel_for, in blocks, of which the last may be
 * shorter. `from` is a multiple of `block`. */
void wn_parallel_blocks(int threads, int64_t n, int64_t block, void (*fn)(void *arg, int64_t from, int64_t to),
                        const void *arg);

/* Inside: this hand, and how many there are; outside 0 and 1. */
int wn_hand(void);
int wn_hands(void);

/* Waits for all hands of the region. */
void wn_barrier(void);

/* This hand's range of 0..n-1, as of wn_parallel_for: for (struct wn_share i = wn_share(n); i.at < i.end; i.at++). */
struct wn_share {
  int64_t at, end;
};
struct wn_share wn_share(int64_t n);

/* The next of n tasks that no hand has taken yet; false: there is none. After a barrier all are there again. */
bool wn_task(int64_t n, int64_t *task);

#endif
