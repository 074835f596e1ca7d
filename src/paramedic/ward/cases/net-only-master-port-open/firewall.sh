# Host firewall of the compute nodes: only listed services may be reached.
iptables -A INPUT -i lo -j ACCEPT
iptables -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
iptables -A INPUT -p tcp --dport 29500 -j ACCEPT
iptables -A INPUT -j DROP
