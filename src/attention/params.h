/* The few declarations of registry.h that a model's table of parameters needs. They stand apart so that a new member of
 * struct wn_mechanism does not recompile everything that includes a model. */
#ifndef WN_ATTENTION_PARAMS_H
#define WN_ATTENTION_PARAMS_H

struct wn_mechanism_input;
struct wn_attention_input;

enum wn_param_range { WN_RANGE_ALL, WN_RANGE_RATIO, WN_RANGE_POSITIVE }; /* any number; [0,1]; 0 and above */

#define WN_MECHANISM_PARAMETERS_MAX 8
#define WN_MECHANISM_INPUTS_MAX 8

#endif
