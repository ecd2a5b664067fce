/* What of the mechanisms' rows (registry.h) a table of parameters speaks of, apart, so that a new member of a row does
 * not rebuild all that has a model. */
#ifndef WN_ATTENTION_PARAMS_H
#define WN_ATTENTION_PARAMS_H

struct wn_mechanism_input;
struct wn_attention_input;

enum wn_param_range { WN_RANGE_ALL, WN_RANGE_RATIO, WN_RANGE_POSITIVE }; /* any number; [0,1]; 0 and above */

#define WN_MECHANISM_PARAMETERS_MAX 8
#define WN_MECHANISM_INPUTS_MAX 8

#endif
