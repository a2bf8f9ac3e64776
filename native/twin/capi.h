/* C ABI of the twin. One machine is used by one thread at a time. Errors of use (bad parameters, unknown
 * kernel, address outside every allocation) make a call return 0/-1 and are told by epsim_last_error();
 * violations are the result of epsim_run(). All returned strings live until the next call on the same machine
 * (or thread). */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct epsim_machine epsim_machine;

/* params_json: a flat object; missing keys take the value in brackets; an unknown key is an error.
 *   "ranks" [2], "aivs" [2]: AIVs (and jetties) per rank; "seed" [0]
 *   "strategy" ["random"]: random | pct | delay_pipe | late | inorder (no checks, everything done at issue)
 *   "pct_depth" [3], "pct_steps" [2000]: change points and the length they are drawn from
 *   "ub_bytes" [221184]: UB that a kernel may use; behind it lie 8 KiB reserve and the SIMT DCache
 *   "max_steps" [20000000]: scheduler steps until the run counts as livelocked
 *   "trace" [0]: 1 keeps the operation trace for epsim_trace
 *   "sq_depth" [32768], "cq_depth" [64]: ring sizes of a jetty, powers of two
 * Returns NULL on error. */
epsim_machine* epsim_machine_create(const char* params_json);
void epsim_machine_destroy(epsim_machine* machine);

/* flags: 1 = zero filled and initialised; 0 = uninitialised, poisoned with 0xff. Returns a simulated address
 * ((rank + 1) << 40 | offset, 512 B aligned) or 0. */
uint64_t epsim_alloc(epsim_machine* machine, int32_t rank, uint64_t num_bytes, const char* name,
                     uint32_t flags);
/* Host copies, outside a run. Both return 0, or -1 when the range lies outside an allocation. */
int32_t epsim_write(epsim_machine* machine, uint64_t address, const void* source, uint64_t num_bytes);
int32_t epsim_read(epsim_machine* machine, uint64_t address, void* target, uint64_t num_bytes);
/* Forget the content: uninitialised and poisoned again. */
int32_t epsim_forget(epsim_machine* machine, uint64_t address, uint64_t num_bytes);

/* Create all jetties and fill their tables in GM (allocations "jetty_info" and "peer_info" per rank). The
 * window of a rank is its allocation named "window", which must exist. Returns 0 or -1. */
int32_t epsim_init_jetties(epsim_machine* machine);
/* Address of the allocation of that name on a rank, 0 if there is none. */
uint64_t epsim_find(epsim_machine* machine, int32_t rank, const char* name);

/* Append to the stream of a rank. A launch starts when everything before it in the stream has ended. */
int32_t epsim_enqueue(epsim_machine* machine, int32_t rank, const char* kernel, uint64_t args_address,
                      int32_t blocks);
/* The stream waits until (word[i] & mask) == value for all n 32-bit words at address. */
int32_t epsim_enqueue_wait_words(epsim_machine* machine, int32_t rank, uint64_t address, uint32_t n,
                                 uint32_t mask, uint32_t value);

/* Run all streams to their ends. 0 = done, 1 = violation (the machine must then be destroyed), -1 = misuse.
 */
int32_t epsim_run(epsim_machine* machine);
/* JSON of the violation, "null" if there is none. */
const char* epsim_report(epsim_machine* machine);
/* Write the operation trace (JSON lines) to a file. Returns 0 or -1. */
int32_t epsim_trace(epsim_machine* machine, const char* path);
/* JSON: steps, ops, switches, schedule hash. */
const char* epsim_stats(epsim_machine* machine);
/* JSON list of registered kernel names. */
const char* epsim_kernels(void);
const char* epsim_last_error(void);

#ifdef __cplusplus
}
#endif
