"""Many tables that are looked up and trained together: their configs, inputs and rows."""
