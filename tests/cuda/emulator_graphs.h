/* Graphs on the emulated run-time library, for test_emulator_graph.c. */
#ifndef TESTS_CUDA_EMULATOR_GRAPHS_H
#define TESTS_CUDA_EMULATOR_GRAPHS_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What becomes of x, which starts as 1. */
struct graph_values {
  float built;    /* after building a graph of 3 x, then x + 1, without launching it */
  float launched; /* after launching it once */
  float changed;  /* after another launch, with 5 x */
  float captured; /* after capturing 2 x, and zeros elsewhere, from another stream as a child graph */
  float child;    /* after launching that */
  float zeros;    /* the other place */
};
/* chained: the graph's second node depends on the first. */
void graph_run(bool chained, struct graph_values *out);

enum graph_fault {
  GRAPH_FAULT_PAGEABLE,       /* a copy of pageable host memory during a capture */
  GRAPH_FAULT_SYNCHRONIZE,    /* waiting for the captured stream */
  GRAPH_FAULT_EVENT,          /* waiting for an event in it */
  GRAPH_FAULT_ALLOCATE,       /* allocating during a capture */
  GRAPH_FAULT_ALLOCATE_ASYNC, /* allocating from the captured stream */
  GRAPH_FAULT_FREE,
  GRAPH_FAULT_PINNED,
  GRAPH_FAULT_LAUNCH,        /* launching a graph in a captured stream */
  GRAPH_FAULT_TWICE,         /* a second capture */
  GRAPH_FAULT_MODE,          /* a capture that calls of other threads would break */
  GRAPH_FAULT_END,           /* ending without a capture */
  GRAPH_FAULT_STREAM,        /* a kernel in a stream that is neither the program's nor captured */
  GRAPH_FAULT_DESTROYED,     /* launching a destroyed graph */
  GRAPH_FAULT_SET_DESTROYED, /* changing a node of a destroyed graph */
  GRAPH_FAULT_SET_KERNEL,    /* changing a node's kernel to another */
  GRAPH_FAULT_SET_OTHER,     /* changing another graph's node */
  GRAPH_FAULT_AFTER_OTHER,   /* a node that depends on another graph's */
  GRAPH_FAULT_FREED,         /* launching with freed memory */
  GRAPH_FAULTS
};
/* The error of the call, or 0. *invalid: the capture around it gave no graph. */
int graph_fault(enum graph_fault fault, bool *invalid);
/* The name of the call, which the error must contain. */
const char *graph_fault_call(enum graph_fault fault);

#ifdef __cplusplus
}
#endif

#endif
