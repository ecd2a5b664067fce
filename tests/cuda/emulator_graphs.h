/* What test_emulator_graph.c asks of the emulated run time's graphs. */
#ifndef TESTS_CUDA_EMULATOR_GRAPHS_H
#define TESTS_CUDA_EMULATOR_GRAPHS_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What x, which is 1, has become. */
struct graph_values {
  float built;    /* a graph of 3 x, then x + 1, has been made and was not launched */
  float launched; /* once */
  float changed;  /* and once more with 5 x */
  float captured; /* 2 x, then zeros elsewhere, have been captured from another stream and are a graph's child */
  float child;    /* which was launched */
  float zeros;    /* what lay elsewhere */
};
/* chained: the second node of a graph waits for the first. */
void graph_run(bool chained, struct graph_values *out);

enum graph_fault {
  GRAPH_FAULT_PAGEABLE,       /* a copy of the host's memory while a stream is captured */
  GRAPH_FAULT_SYNCHRONIZE,    /* waiting for the captured stream */
  GRAPH_FAULT_EVENT,          /* waiting for a mark in it */
  GRAPH_FAULT_ALLOCATE,       /* memory while a stream is captured */
  GRAPH_FAULT_ALLOCATE_ASYNC, /* memory of the captured stream's */
  GRAPH_FAULT_FREE,
  GRAPH_FAULT_PINNED,
  GRAPH_FAULT_LAUNCH,        /* a graph in a captured stream */
  GRAPH_FAULT_TWICE,         /* a second capture */
  GRAPH_FAULT_MODE,          /* a capture that other threads' calls break */
  GRAPH_FAULT_END,           /* of no capture */
  GRAPH_FAULT_STREAM,        /* a kernel in a stream that is not the program's and is not captured */
  GRAPH_FAULT_DESTROYED,     /* launched */
  GRAPH_FAULT_SET_DESTROYED, /* a node of a graph that has been destroyed is changed */
  GRAPH_FAULT_SET_KERNEL,    /* a node's kernel is changed to another */
  GRAPH_FAULT_SET_OTHER,     /* another graph's node */
  GRAPH_FAULT_AFTER_OTHER,   /* a node that waits for another graph's */
  GRAPH_FAULT_FREED,         /* launched with memory that has been given back */
  GRAPH_FAULTS
};
/* The call's error, or 0; *invalid: the capture it was in gave no graph. */
int graph_fault(enum graph_fault fault, bool *invalid);
/* The call's name, which the error has. */
const char *graph_fault_call(enum graph_fault fault);

#ifdef __cplusplus
}
#endif

#endif
