/* What test_emulator_streams.c asks of the emulated run time's streams. */
#ifndef TESTS_CUDA_EMULATOR_STREAMS_H
#define TESTS_CUDA_EMULATOR_STREAMS_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* x = 1 in the program's stream, x = 2 x and x = x + 3 in a second one, x = 10 x in the program's: 50, if they wait for
 * each other: second: for what the program's stream had before; program: for the second's; middle: the second's last
 * task is in a third stream, which waits for the second, and the program's for the third. */
struct stream_waits {
  bool second, program, third, middle;
};
float streams_value(struct stream_waits waits);
/* The same captured from a stream that is not the program's, and launched as a graph; the error of the capture's end.
 */
float streams_captured(struct stream_waits waits, int *error);
/* A wait for an event that is recorded later is none; the event's next record does not change what was waited for. */
float streams_events(bool late);
/* A second stream is written to before it has waited for the program's. */
void streams_fault(void);

/* Attention on sm_90, backward right behind forward: bytes of its results that are others where its windows run beside
 * each other, or are captured so and launched as a graph, than where they run one after the other; -1: something
 * failed. */
int attention_together(void);

#ifdef __cplusplus
}
#endif

#endif
