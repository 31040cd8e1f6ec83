/* tests/support/amx.h - the instructions of AMX on a CPU without them, so that their kernels can be
 * tested where no such CPU is at hand. */
#ifndef TESTS_SUPPORT_AMX_H
#define TESTS_SUPPORT_AMX_H

/* From here on an instruction of tiles that this CPU does not know is computed by a handler of
 * SIGILL, as Intel's manual defines it, each thread with tiles of its own; any other illegal
 * instruction ends the process, as does one whose shapes do not fit. x86-64 only. Some
 * microseconds each: for tests of kernels, not of models. */
void amx_emulate(void);

#endif
