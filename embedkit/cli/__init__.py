"""The programs ``embedkit-index`` (`main`) and ``embedkit-model`` (`model`)."""
