/* Streams on the emulated run-time library, for test_emulator_streams.c. */
#ifndef TESTS_CUDA_EMULATOR_STREAMS_H
#define TESTS_CUDA_EMULATOR_STREAMS_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* x = 1 in the program's stream, x = 2 x and x = x + 3 in a second one, x = 10 x in the program's: 50, if they wait for
 * each other. second: the second stream waits for the program's first task; program: the program's stream waits for the
 * second's; middle: the second's last task runs in a third stream, which waits for the second, and for which the
 * program's waits. */
struct stream_waits {
  bool second, program, third, middle;
};
float streams_value(struct stream_waits waits);
/* The same, captured from a stream that is not the program's and launched as a graph. *error: that of ending the
 * capture. */
float streams_captured(struct stream_waits waits, int *error);
/* Waiting for an event that is recorded later does nothing. Recording an event again does not change an earlier wait.
 */
float streams_events(bool late);
/* Writes in a second stream that has not waited for the program's. */
void streams_fault(void);

/* Attention on sm_90, the backward pass directly after the forward pass. Returns the number of bytes in which results
 * differ between chunks that run one after the other and chunks that run concurrently, or are captured so and launched
 * as a graph; -1: an error. */
int attention_together(void);

#ifdef __cplusplus
}
#endif

#endif
