// Kernels for any machine.
#define PROA_ISA_PORTABLE 1
#define PROA_ISA_NAMESPACE portable
#include "table_impl.h"

const proa::KernelTable* proa::kernels_portable() { return portable::table("portable"); }
