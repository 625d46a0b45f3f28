"""The planner: what an engine would say, from a few kilobytes of configuration.

From the ground up, each layer importing only from those before it:

- shapes, which the catalogue's schema is made of: ``architecture``, ``widths``, ``contents``
  (with ``safetensors``), ``rules`` (how engine versions differ);
- arithmetic on them: ``memory`` and ``pool`` (vLLM's KV pool), ``calibration``, ``machine``,
  ``case``, ``terms``, ``remedies`` and ``budget`` (everything around it), ``sglang`` (its own
  split), ``frontier``;
- what is planned: ``checkpoint``, with its ``cache``, and ``reading`` (what a hub or a disk really
  holds), ``disagreements`` (where the catalogue says otherwise), ``effective`` (settings and the
  engine's defaults), ``subject`` (all of it in one place), ``findings``;
- ``planner`` makes a plan of it, ``fleet`` one for each host of an inventory, ``gate`` one for a
  deploy, ``shown`` prints them.

Only ``checkpoint`` and its ``cache`` touch files or network.
"""
